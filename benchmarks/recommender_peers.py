r"""Recommenders that people install, and ours: quality, time and memory on one split, with everybody's defaults.

    python -m benchmarks.recommender_peers ml-100k.npz ml-1m.npz
    python -m benchmarks.recommender_peers ml-100k.npz --only "implicit ALS" --only "lbdrop default"

A file is an .npz with ``user``, ``item`` and perhaps ``rating``, of which 4 and more are likes. Users with fewer than five
likes are left out. A tenth of the others, at most 10,000, are test users: a fifth of their likes is hidden, and the rest is
fitted with everybody else's, because most libraries can score nobody else. Every contestant runs in a process of its own
with one thread, gives 100 items to each test user by the library's own call, and is measured by our Recall@20 and NDCG@100.
Seconds are processor time. Memory is what the process takes at most above what it had after its imports.

A contestant that is not installed, fails, or needs more than ``--limit`` seconds, is in the table with its reason. Finished
contestants are kept in ``--work``, and the same call goes on from there.
"""

import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer
from rich.console import Console
from scipy.sparse import csr_matrix

from benchmarks.recommender_contestants import CONTESTANTS
from lbdrop.io.records import provenance, write_json
from lbdrop.metrics.ranking import mean_over_users, ndcg_at_k, recall_at_k, which_items
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.splits import SEED, HeldOut, fold_in

__all__ = ["collected", "likes", "main", "measured", "split", "table"]

K = 100
"""Items for each user."""
RESULT = Path(__file__).parent / "results" / "recommender_peers.json"
AGAINST = "lbdrop default"


def likes(path: Path) -> Interactions:
    """Users with five likes of a file."""
    with np.load(path) as arrays:
        kept = arrays["rating"] >= 4 if "rating" in arrays else np.ones(len(arrays["user"]), bool)
        frame = pl.DataFrame({"user_id": arrays["user"][kept], "item_id": arrays["item"][kept]})
    return Interactions.from_frame(frame, min_user_items=5)


def split(data: Interactions, seed: int) -> tuple[csr_matrix, np.ndarray, HeldOut]:
    """What is fitted, the rows of the test users in it, and their hidden likes."""
    users = len(data.users)
    test = np.sort(np.random.default_rng(seed).permutation(users)[: min(users // 10, 10_000)])
    held = fold_in(data.select(test), seed=(SEED + seed) % 2**32)
    train = csr_matrix(data.rows, copy=True).tolil()
    train[test] = csr_matrix(held.fold_in)
    return csr_matrix(train.tocsr(), dtype=np.float32), test, held


def measured(ranked: np.ndarray, held: HeldOut) -> dict[str, torch.Tensor]:
    """Recall@20 and NDCG@100 of each test user."""
    rows: Any = held.held_out.tocoo()
    shape: Any = held.held_out.shape
    relevant = which_items(torch.from_numpy(rows.row).long(), torch.from_numpy(rows.col).long(), shape)
    best = torch.from_numpy(ranked[:, : min(K, shape[1])]).long()
    return {"recall@20": recall_at_k(best, relevant, 20), "ndcg@100": ndcg_at_k(best, relevant, K)}


def run_one(file: Path, name: str, seed: int, out: Path) -> None:
    """Fit and ask one contestant in this process."""
    torch.set_num_threads(1)
    train, test, held = split(likes(file), seed)
    contestant = CONTESTANTS[name].make()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    fitted = contestant(train, seed)
    after = time.process_time()
    ranked = fitted(test, K)
    done = time.process_time()
    # Nobody may recommend what a user has; whoever does is measured without it, as the others are.
    assert not (train[test][np.arange(len(test))[:, None], np.maximum(ranked, 0)].toarray() * (ranked >= 0)).any(), name
    per_user = measured(ranked, held)
    write_json(out, {
        "contestant": name, "data": file.stem, "seed": seed, "fit_seconds": after - started, "score_seconds": done - after,
        "users_scored": len(test),
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "per_user": {key: [round(float(each), 5) for each in value] for key, value in per_user.items()},
        "version": importlib.metadata.version(CONTESTANTS[name].package), "provenance": provenance("cpu"),
    })  # fmt: skip


def main(
    files: Annotated[list[Path], typer.Argument(help="Files of likes.")],
    only: Annotated[list[str] | None, typer.Option(help="Contestants to run; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the test users and their hidden likes.")] = 0,
    limit: Annotated[int, typer.Option(help="Seconds for each contestant.")] = 1200,
    work: Annotated[Path, typer.Option(help="Folder of finished contestants.")] = Path("recommender-peers"),
    out: Annotated[Path, typer.Option(help="The record.")] = RESULT,
    one: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure every contestant on every file and write the record."""
    if one is not None:
        run_one(files[0], (only or [""])[0], seed, one)
        return
    work.mkdir(parents=True, exist_ok=True)
    for file in files:
        for name in only or CONTESTANTS:
            target = work / f"{file.stem}-{name.replace(' ', '-')}-seed{seed}.json"
            if not target.exists() and (reason := _in_a_process(file, name, seed, target, limit)):
                target.with_suffix(".failed").write_text(reason)
                print(f"{file.stem}, {name}: {reason}", file=sys.stderr)
    record = collected(work, [file.stem for file in files], seed)
    Console().print(f"JSON: {write_json(out, record)}", soft_wrap=True)


def _in_a_process(file: Path, name: str, seed: int, target: Path, limit: int) -> str | None:
    """The reason why there is no result, if there is none."""
    call = [sys.executable, "-m", "benchmarks.recommender_peers", str(file), "--only", name, "--seed", str(seed),
            "--one", str(target)]  # fmt: skip
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS",
                             "NUMBA_NUM_THREADS", "IRSPACK_NUM_THREADS_DEFAULT", "LK_NUM_THREADS"), "1")  # fmt: skip
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=limit, env=os.environ | threads)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return f"failed: {lines[-1].strip(' │')[:200] if lines else done.returncode}"
    return None


def collected(work: Path, data: list[str], seed: int) -> dict[str, Any]:
    """The record of all contestants, with each one's difference from ours, paired over users."""
    sets: dict[str, dict[str, Any]] = {}
    for stem in data:
        found = {}
        for name in CONTESTANTS:
            path = work / f"{stem}-{name.replace(' ', '-')}-seed{seed}.json"
            if path.exists():
                found[name] = json.loads(path.read_text())
            else:
                failed = path.with_suffix(".failed")
                found[name] = {"failed": failed.read_text() if failed.exists() else "not run"}
        ours = found[AGAINST].get("per_user")
        for each in found.values():
            per_user = each.pop("per_user", None)
            if per_user is None:
                continue
            values = {key: torch.tensor(value) for key, value in per_user.items()}
            means = {key: mean_over_users(value) for key, value in values.items()}
            each["mean"] = {key: float(m.mean) for key, m in means.items()}
            each["standard_error"] = {key: float(m.error) for key, m in means.items()}
            if ours is not None:
                paired = mean_over_users(values["ndcg@100"] - torch.tensor(ours["ndcg@100"]))
                each["ndcg@100_minus_ours"] = [float(paired.mean), float(paired.error)]
        sets[stem] = found
    return {"benchmark": "recommender peers", "seed": seed, "threads": 1, "k": K, "data": sets,
            "provenance": provenance("cpu")}  # fmt: skip


def table(record: dict[str, Any], data: str) -> str:
    """The rows of one data set as Markdown, the best first."""
    rows = record["data"][data]
    lines = [
        "| | NDCG@100 | Recall@20 | minus ours, paired | fit, s | 1,000 users, s | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    there = {name: row for name, row in rows.items() if "mean" in row}
    for name, row in sorted(there.items(), key=lambda pair: -pair[1]["mean"]["ndcg@100"]):
        mean, error = row["mean"], row["standard_error"]
        gap = "" if name == AGAINST else "{:+.4f} ± {:.4f}".format(*row["ndcg@100_minus_ours"])
        shown = f"**{name}**" if name.startswith("lbdrop") else f"{name} {row['version']}"
        lines.append(
            f"| {shown} | {mean['ndcg@100']:.4f} ± {error['ndcg@100']:.4f} | {mean['recall@20']:.4f} | {gap} |"
            f" {row['fit_seconds']:.1f} | {1000 * row['score_seconds'] / row['users_scored']:.2f} | {row['megabytes']:,.0f} |"
        )
    lines += [f"| {name} | {row['failed']} | | | | | |" for name, row in rows.items() if "mean" not in row]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
