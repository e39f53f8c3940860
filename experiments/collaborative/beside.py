"""``Recommender()`` with nothing set beside the best of its rivals, on the same split: quality, paired over users, and time.

    python -m experiments.collaborative.beside ml-1m data/ml-1m.npz --seed 0
    python -m experiments.collaborative.beside netflix data/netflix.npz --device cuda --network-seconds 150

Every contestant learns from the training users, decides on the validation users, and is measured on the test users once. EASE,
iALS and the fixed rate try a grid on validation users. EASE and iALS are then fitted again with these users, whom EDLAE and the
default release too. A seed is another split and another draw of everything. One JSON a run, in ``results_beside``.

Reads compact .npz files of likes with numpy alone, so it runs where polars is not installed.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.collaborative import stand_ins

stand_ins.install("polars", "narwhals", "rich", "typer")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.sparse import csr_array  # noqa: E402
from scipy.stats import ttest_rel  # noqa: E402
from torch import Tensor  # noqa: E402

from lbdrop.io.records import provenance, write_json  # noqa: E402
from lbdrop.recommend.data.interactions import Interactions  # noqa: E402
from lbdrop.recommend.data.rows import Rows  # noqa: E402
from lbdrop.recommend.data.splits import SEED, HeldOut, Split, hidden_fifth, split_users  # noqa: E402
from lbdrop.recommend.linear.blend import Blend  # noqa: E402
from lbdrop.recommend.linear.methods import EASE, EDLAE, IALS, Linear  # noqa: E402
from lbdrop.recommend.method_args import EXPERT_SETTINGS, sized_for_data  # noqa: E402
from lbdrop.recommend.model.product import Product  # noqa: E402
from lbdrop.recommend.model.settings import Settings  # noqa: E402
from lbdrop.recommend.model.vae import VAE  # noqa: E402
from lbdrop.recommend.train.evaluate import HeldOutRows, Report, evaluate  # noqa: E402
from lbdrop.recommend.train.experts import fit_experts  # noqa: E402
from lbdrop.recommend.train.fit import fit as fit_network  # noqa: E402
from lbdrop.recommend.train.loop import Loop, launch  # noqa: E402

HELD_OUT = {"ml-1m": 750, "ml-100k": 150, "netflix": 40_000, "netflix-sample": 10_000, "gowalla": 3_000, "shop": 400,
            "gowalla-lightgcn": 3_000}  # fmt: skip
"""Validation users, and as many test users."""
RATES = (0.1, 0.3, 0.5, 0.7)
LISTED = 20
"""Items of a list in the measures of LightGCN's split, where Recall@20 is divided by all items to find."""
WHOLE_NETFLIX = {"gamma": None, "hidden": 1200, "layers": 5, "lr": 1e-3, "mask_kl": 4.0}
"""Of the network on 400,000 users: chosen on validation users before (LOG.md)."""


class Ids:
    """As much of a polars Series as a split needs."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def gather(self, indices: Any) -> "Ids":
        return Ids(self.values[indices])


class Contestant(NamedTuple):
    """What was fitted."""

    scores: Callable[..., Tensor]
    facts: dict[str, Any]
    seconds: float


# ---------------------------------------------------------------------------------------------------------------- data


def likes(name: str, source: Path | None, some_users: int | None) -> csr_array:
    """Users × items, both sorted by id."""
    if name == "shop":
        from experiments.demo.shop import ShopSettings
        from lbdrop.recommend.data.shop import generate_shop

        demo = ShopSettings()
        frame = generate_shop(demo.users, demo.items, demo.seed).interactions
        return Interactions.from_frame(frame, min_user_items=5).rows
    assert source is not None
    found = np.load(source)
    if name.startswith("netflix"):
        count = found["count"].astype(np.int64)
        item = np.cumsum(found["low"].astype(np.int64) + (found["high"].astype(np.int64) << 8))
        start = np.cumsum(count) - count
        item -= np.repeat(np.where(start > 0, item[np.maximum(start - 1, 0)], 0), count)
        rank = np.argsort(np.argsort(found["movie_id"], kind="stable"))
        rows = csr_array((np.ones(len(item), np.float32), rank[item].astype(np.int32), np.append(start, len(item))))
    else:
        kept = found["rating"] >= 4 if "rating" in found else slice(None)
        user, item = (np.unique(found[key][kept], return_inverse=True)[1] for key in ("user", "item"))
        rows = csr_array((np.ones(len(user), np.float32), (user, item)))
        rows = rows[np.diff(rows.indptr) >= 5]
        rows = rows[:, np.flatnonzero(np.bincount(rows.indices))]
    rows.sum_duplicates()
    rows.data[:] = 1
    return rows if some_users is None else rows[:some_users]


def lightgcn(source: Path, seed: int) -> tuple[Split, HeldOut]:
    """Some users decide as validation users, the others train; the test is what LightGCN's authors held out of each user."""
    found = np.load(source)
    shape = (int(found["user"].max()) + 1, int(found["item"].max()) + 1)
    known, hidden = (
        csr_array((np.ones(int(part.sum()), np.float32), (found["user"][part], found["item"][part])), shape=shape)
        for part in (~found["test"], found["test"])
    )
    for each in (known, hidden):
        each.sum_duplicates()
        each.data[:] = 1
    order, ids = np.random.default_rng(SEED + seed).permutation(shape[0]), Ids(np.arange(shape[0]))
    some, others = np.sort(order[: HELD_OUT["gowalla-lightgcn"]]), np.sort(order[HELD_OUT["gowalla-lightgcn"] :])
    held = hidden_fifth(csr_array(known[some]))
    train = Interactions(csr_array(known[others]), ids.gather(others), Ids(np.arange(shape[1])))  # pyright: ignore[reportArgumentType]
    test = HeldOut(known, hidden, ids)  # pyright: ignore[reportArgumentType]
    return Split(train, held, test), test


def size(rows: Any) -> tuple[int, int]:
    return rows.shape


def split(name: str, rows: csr_array, seed: int) -> Split:
    """By the protocol; a sample's users are some training users of the whole, as in ``samples.py``."""
    users, held_out, draw = np.arange(size(rows)[0]), HELD_OUT[name], SEED + seed
    if name == "netflix-sample" and len(users) > 60_000:  # a file may have the sample's users alone
        users = np.random.RandomState(draw).permutation(len(users))[:60_000]
        users.sort()
    if 2 * held_out >= len(users):  # a trial on few users
        held_out = len(users) // 8
    chosen = Interactions(csr_array(rows[users]), Ids(users), Ids(np.arange(size(rows)[1])))  # pyright: ignore[reportArgumentType]
    return split_users(chosen, held_out, draw)


# --------------------------------------------------------------------------------------------------------- contestants


class Race:
    """The contestants on one split."""

    def __init__(self, made: Split, seed: int, device: torch.device, network: Settings, network_seconds: float | None):
        self.split, self.seed, self.device = made, seed, device
        self.network: VAE | None = None
        rows = made.train.rows
        held = made.validation
        self.everybody = csr_array(_stacked(rows, held.fold_in + held.held_out))
        self.validation = HeldOutRows.on(held, device)
        self.settings, self.linear = network, Blend(device=device)
        if network_seconds is not None:
            self.settings = replace(network, epochs=max(int(network_seconds / self._epoch_seconds()), 2))

    def _epoch_seconds(self) -> float:
        model = VAE(size(self.split.train.rows)[1], self.settings).to(self.device)
        loop = Loop(model, Rows.from_csr(self.split.train.rows, self.device), self.settings, launch(self.device))
        return min(loop.epoch(number)["seconds"] for number in (1, 2))

    def ease(self) -> Contestant:
        few = (500.0, 1000.0, 2000.0) if self.everybody.nnz > 20_000_000 else (100.0, 200.0, 500.0, 1000.0, 2000.0)
        return self._of_grid([Maker(EASE, regularisation=r) for r in few])

    def ials(self) -> Contestant:
        grid = [(a, r) for a in (0.1, 0.3) for r in (0.003, 0.01)]
        return self._of_grid([Maker(IALS, unobserved=a, regularisation=r, seed=self.seed) for a, r in grid])

    def edlae(self) -> Contestant:
        with timed() as seconds:
            model = EDLAE(device=self.device).fit(self.split.train.rows, self.split.validation)
        return Contestant(model.scores, _ridge(model), seconds())

    def edlae_fixed(self) -> Contestant:
        """EDLAE with each rate of a grid; only λ is learned."""
        best, tried = None, {}
        with timed() as seconds:
            for rate in RATES:
                model = EDLAE(rate, device=self.device)
                gram = model.begin(self.split.train.rows, self.split.validation)
                tried[str(rate)] = evaluate(model, self.validation, device=self.device).mean["ndcg@100"]
                if tried[str(rate)] >= max(tried.values()):
                    best = model.release(gram, self.split.train.rows, self.split.validation)
                del gram
        assert best is not None
        return Contestant(best.scores, {"validation": tried} | _ridge(best), seconds())

    def blend(self) -> Contestant:
        """The default without its network."""
        if not self.linear.state:
            with timed() as seconds:
                self.linear.fit(self.split.train.rows, self.split.validation)
            return Contestant(self.linear.scores, _ridge(self.linear), seconds())
        return Contestant(self.linear.scores, _ridge(self.linear), 0.0)

    def default(self) -> Contestant:
        """As ``Recommender()`` fits, after its own split of validation users."""
        with timed() as seconds:
            found = fit_experts(
                self.split.train.rows, self.split.validation, self.linear, self.settings, seed=self.seed,
                choose=True, patience=10, progress=False, validate_every=5 if self.device.type == "cuda" else 1,
            )  # fmt: skip
        model, facts = found.model, {"reason": found.reason}
        facts |= _ridge(self.linear)
        if isinstance(model, Product):
            assert found.history is not None
            facts |= {
                "weights": model.weights.tolist(),
                "epochs": len(found.history.epochs),
                "keep": float(model.network.keep),
            }
            facts |= {"settings": asdict(self.settings)}
            self.network = model.network
        return Contestant(model.scores, facts, seconds())

    def learned(self) -> Contestant:
        """The default's network alone, fitted here where the default has none."""
        if self.network is not None:
            return Contestant(self.network.plain_scores, {}, 0.0)
        with timed() as seconds:
            model, _ = self._network(self.settings)
        return Contestant(model.plain_scores, {"keep": float(model.keep)}, seconds())

    def fixed(self) -> Contestant:
        """The default's network alone with each rate of a grid."""
        best, tried = None, {}
        with timed() as seconds:
            for rate in RATES:
                fixed = replace(self.settings, dropout="fixed", rate=rate, mask_kl=0.0, samples=0)
                model, tried[str(rate)] = self._network(fixed)
                if tried[str(rate)] >= max(tried.values()):
                    best = model
        assert best is not None
        return Contestant(best.plain_scores, {"validation": tried}, seconds())

    def _network(self, settings: Settings) -> tuple[VAE, float | None]:
        torch.manual_seed(self.seed)
        model = VAE(size(self.split.train.rows)[1], settings)
        history = fit_network(
            model, self.split.train.rows, self.validation, settings, device=self.device, seed=self.seed, patience=10,
            progress=False,
        )  # fmt: skip
        return model.eval(), history.best_measure

    def _of_grid(self, made: list[Callable[..., Linear]]) -> Contestant:
        tried = [
            evaluate(each(device=self.device).fit(self.split.train.rows), self.validation, device=self.device).mean[
                "ndcg@100"
            ]
            for each in made
        ]
        chosen = made[int(np.argmax(tried))]
        with timed() as seconds:
            model = chosen(device=self.device).fit(self.everybody)
        return Contestant(model.scores, {"validation": tried, "chosen": int(np.argmax(tried))}, seconds())


class Maker:
    """``functools.partial`` that ``device_of`` does not look into."""

    def __init__(self, kind: type[Linear], **options: Any):
        self.kind, self.options = kind, options

    def __call__(self, device: torch.device) -> Linear:
        return self.kind(**self.options, device=device)


def _stacked(*parts: Any) -> Any:
    from scipy.sparse import vstack

    return vstack(parts, format="csr")


def _ridge(model: EDLAE) -> dict[str, Any]:
    if model.ridge is None:
        return {}
    share = {"share": model.share} if isinstance(model, Blend) else {}
    return share | {
        "rate": model.ridge.rate,
        "regularisation": model.ridge.regularisation,
        "inverses": model.ridge.inverses,
    }


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Wall time; of the processor where the machine has other work."""
    start, found = time.process_time() if not torch.cuda.is_available() else time.perf_counter(), []
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    yield lambda: found[0] if found else clock() - start
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    found.append(clock() - start)


# ------------------------------------------------------------------------------------------------------------ records


def beside(first: Report, other: Report) -> dict[str, float]:
    """The first minus the other, paired over users."""
    a, b = (report.per_user["ndcg@100"].double() for report in (first, other))
    there = ~torch.isnan(a)
    difference = (a - b)[there]
    p = float(ttest_rel(a[there].numpy(), b[there].numpy()).pvalue) if bool((difference != 0).any()) else 1.0
    return {"mean": float(difference.mean()), "error": float(difference.std() / math.sqrt(len(difference))),
            "users": len(difference), "p": p}  # fmt: skip


def run(name: str, seed: int, rows: csr_array, names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(args.device)
    made = lightgcn(args.source, seed)[0] if name == "gowalla-lightgcn" else split(name, rows, seed)
    changes: dict[str, Any] = dict(WHOLE_NETFLIX) if name == "netflix" else {}
    changes |= {} if args.epochs is None else {"epochs": args.epochs}
    changes |= {} if args.batch is None else {"batch": args.batch}
    users, items = size(made.train.rows)
    network = sized_for_data(replace(EXPERT_SETTINGS, **changes), frozenset(changes), users, items)
    race = Race(made, seed, device, network, args.network_seconds if name == "netflix" else None)
    test = HeldOutRows.on(made.test, device)
    reports, facts = {}, {}
    for each in names:
        contestant: Contestant = getattr(race, each)()
        reports[each] = evaluate(contestant.scores, test, device=device, ndcg=(100, LISTED))
        facts[each] = contestant.facts | {"seconds": contestant.seconds} | reports[each].record()
        if name == "gowalla-lightgcn":
            found = np.diff(made.test.held_out.indptr)
            shown = reports[each].per_user["recall@20"].double().numpy() * np.minimum(found, LISTED) / found.clip(min=1)
            facts[each]["recall@20 of all"] = float(np.nanmean(np.where(found > 0, shown, np.nan)))
            print(name, each, "recall@20 of all", facts[each]["recall@20 of all"], flush=True)
        print(
            f"{name} {seed} {each}: {reports[each]}, {contestant.seconds:.1f} s {contestant.facts.get('reason', '')}",
            flush=True,
        )
        del contestant
    shape = {"train_users": users, "items": items, "train_likes": int(made.train.rows.nnz)}
    rivals = [each for each in names if each != "default"] if "default" in names else []
    pairs = {"network": ("learned", "fixed"), "linear": ("edlae", "edlae_fixed")}
    both = {part: beside(reports[a], reports[b]) for part, (a, b) in pairs.items() if {a, b} <= set(names)}
    return {
        "experiment": "beside",
        "dataset": name,
        "seed": seed,
        "data": shape | {"held_out_users": test.fold_in.users},
        "contestants": facts,
        "default_minus": {each: beside(reports["default"], reports[each]) for each in rivals},
        "learned_minus_fixed": both,
        "seconds_are": "wall" if torch.cuda.is_available() else "process",
        "provenance": provenance(device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=HELD_OUT, nargs="+")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--contestants", default="ease,ials,edlae,edlae_fixed,default,blend,learned,fixed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results_beside")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--network-seconds", type=float, help="of training the network on the whole of Netflix")
    parser.add_argument("--some-users", type=int, help="a trial on the first users")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="start no further run after so many seconds")
    args = parser.parse_args()
    started, rows = time.perf_counter(), None
    for name in args.dataset:
        for seed in [0] if name == "netflix" else args.seed:
            path = args.out / f"{name}-seed{seed}.json"
            if path.exists() or time.perf_counter() - started > args.stop_after:
                print(f"{path}: {'there already' if path.exists() else 'no time left'}", flush=True)
                continue
            if rows is None or not (name.startswith("netflix") and args.dataset[0].startswith("netflix")):
                rows = likes(name, args.source, args.some_users)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, run(name, seed, rows, args.contestants.split(","), args))
            print(f"{path} after {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
