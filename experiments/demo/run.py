r"""Handwritten digits, a small network, and one question: what do learned dropout rates do for its predictions?

Every contestant minimises the same bound on the same few examples; only the rates differ:

$$ \frac1M\sum_{i}\mathbb{E}_{z_i}[-\log p(y_i\mid x_i, z_i)]
   + \frac{\lambda}{N}\sum_k\Big(\frac{\lVert W_k\rVert^2}{2s^2 p_k} - H(p_k)\Big) $$

where the keep rates $p$ are all 1, or fixed, or learned with the weights. The strength $\lambda$ is chosen for each
contestant from the same list, by the validation NLL of its first seed; a run computes test numbers after that choice.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.demo.measures import RateHistory, measure, over_training, pavpu_curve, plain, rate_ranges, summary
from experiments.demo.record import CONTESTANTS, Contestant
from experiments.threads import one_thread
from lbdrop.dropout import LearnableDropout, learned_layers
from lbdrop.errors import DropoutError
from lbdrop.guards.optimizers import parameter_groups
from lbdrop.io.records import provenance
from lbdrop.metrics import reliability_curve
from lbdrop.objective import Objective
from lbdrop.prediction import Predictive, predict
from lbdrop.rules.bound import Bound

__all__ = [
    "Digits", "Examples", "Network", "Settings", "compare", "findings", "load", "measure",
    "predictive", "run", "train", "work",
]  # fmt: skip

SELECTION = {
    "strength": "for each contestant from the same list, by the validation NLL of seed 0",
    "other settings": "by hand, such as the size of the training set, the epochs and the learning rate of the rates, while"
    " looking at test numbers of another split of the same digits; no number of this split was looked at before they were"
    " fixed, but 671 of its 1,097 test digits were test digits there as well, so they are not untouched",
}
"""How the settings came about; part of every result, since it says how far the test numbers can be trusted."""

SPLIT_SEED = 1  # 0 is the split on which the settings were chosen
POINTS = 24  # times that rates are noted in the course of a training, at most

Tick = Callable[[str, int], None]
"""Told after each epoch: whose it was, and what it cost in epochs of plain training."""


@dataclass(frozen=True)
class Settings:
    """All that a run depends on; what is written beside its numbers."""

    seeds: int = 3
    epochs: int = 120
    hidden: int = 256
    train: int = 300
    validation: int = 400
    batch: int = 50
    lr: float = 1e-3
    rate_lr: float = 3e-2
    start_rate: float = 0.5
    strengths: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    s: float = 1.0
    estimator: str = "double-cv"
    masks: int = 20
    pictures: int = 12

    @classmethod
    def quick(cls) -> "Settings":
        """A run of a few seconds that shows the way, not the result."""
        return cls(seeds=2, epochs=4, hidden=32, strengths=(0.1, 1.0))


@dataclass(frozen=True)
class Examples:
    """Digits of 8 × 8 pixels from 0 to 1, their classes, and where they stand in scikit-learn's set."""

    x: Float[Tensor, "n 64"]
    y: Int[Tensor, "n"]
    index: Int[Tensor, "n"]


@dataclass(frozen=True)
class Digits:
    """One split, the same for every seed and contestant."""

    train: Examples
    validation: Examples
    test: Examples


def load(settings: Settings) -> Digits:
    """scikit-learn's 1,797 digits, shuffled once; the test set is all that the other two leave."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DropoutError("the demo needs scikit-learn; install it with pip install 'lbdrop[demo]'") from error
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels).long()
    sizes = [settings.train, settings.validation, len(y) - settings.train - settings.validation]
    return Digits(*(Examples(x[rows], y[rows], rows) for rows in order.split(sizes)))


def dropout(contestant: Contestant, units: int, settings: Settings) -> nn.Module:
    """The contestant's dropout of a layer with so many units."""
    if contestant.rate is not None:
        return nn.Dropout(contestant.rate) if contestant.rate else nn.Identity()
    return LearnableDropout(units if contestant.kind == "per unit" else None, settings.start_rate)


class Network(nn.Module):
    """64 – hidden – hidden – 10, with a dropout behind each hidden layer; one class for every contestant."""

    def __init__(self, hidden: int, dropout: Callable[[int], nn.Module]):
        super().__init__()
        self.first = nn.Linear(64, hidden)
        self.drop1 = dropout(hidden)
        self.second = nn.Linear(hidden, hidden)
        self.drop2 = dropout(hidden)
        self.last = nn.Linear(hidden, 10)

    def forward(self, x: Float[Tensor, "*batch 64"]) -> Float[Tensor, "*batch 10"]:
        x = self.drop1(torch.relu(self.first(x)))
        x = self.drop2(torch.relu(self.second(x)))
        return self.last(x)

    def weight_kl(self, keep: float, s: float) -> Float[Tensor, ""]:
        """The part of the KL that depends on weights where every unit has the same fixed keep rate."""
        return (self.second.weight.square().sum() + self.last.weight.square().sum()) / (2 * s**2 * keep)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All randomness inside follows from ``seed``; the caller's random state is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def train(
    contestant: Contestant, strength: float, seed: int, data: Examples, settings: Settings, tick: Tick | None = None,
    history: RateHistory | None = None,
) -> Network:  # fmt: skip
    """One network of one contestant, trained for all epochs; no early stopping for anyone. Fills ``history`` if given."""
    every = math.ceil(settings.epochs / POINTS)
    with seeded(seed):
        network = Network(settings.hidden, lambda units: dropout(contestant, units, settings)).train()
        loss_of, optimizer = _method(network, contestant, strength, settings)
        for epoch in range(settings.epochs + 1):
            if history is not None and (epoch % every == 0 or epoch == settings.epochs):
                history[epoch] = {name: layer.p for name, layer in learned_layers(network).items()}
            if epoch == settings.epochs:
                break
            for rows in torch.randperm(len(data.y)).split(settings.batch):
                optimizer.zero_grad()
                loss_of(data.x[rows], data.y[rows]).backward()
                optimizer.step()
            if tick:
                tick(f"{contestant.name}, seed {seed}", work(contestant))
    return network


def _method(
    network: Network, contestant: Contestant, strength: float, settings: Settings
) -> tuple[Callable[[Tensor, Tensor], Tensor], torch.optim.Optimizer]:
    """What to minimise, and with what."""
    if contestant.rate is not None:
        scale, keep = strength / settings.train, 1 - contestant.rate

        def fixed(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(network(x), y) + scale * network.weight_kl(keep, settings.s)

        return fixed, torch.optim.Adam(network.parameters(), lr=settings.lr)

    bound = Bound(network, settings.train, s=settings.s, weight=strength)
    objective = Objective(network, bound, estimator=settings.estimator)

    def learned(x: Tensor, y: Tensor) -> Tensor:
        return objective(lambda model: F.cross_entropy(model(x), y, reduction="none"))

    return learned, torch.optim.Adam(parameter_groups(network, lr=settings.lr, rate_lr=settings.rate_lr))


def work(contestant: Contestant) -> int:
    """What an epoch costs in epochs of plain training, roughly: learned rates need two masks and their gradients."""
    return 3 if contestant.learned else 1


def predictive(network: Network, contestant: Contestant, x: Tensor, settings: Settings, seed: int) -> Predictive:
    """The mean over sampled masks, for fixed rates as for learned ones; one pass where there is no dropout."""
    with seeded(seed), torch.no_grad():
        if contestant.learned:
            return predict(network, x, samples=settings.masks)
        passes = settings.masks if contestant.rate else 1
        return Predictive.of(torch.stack([network.train()(x) for _ in range(passes)]))


def rates(network: Network, contestant: Contestant) -> dict[str, list[float]]:
    """The drop rates behind each hidden layer: one number, or one per unit."""
    if contestant.rate is not None:
        return {"drop1": [contestant.rate], "drop2": [contestant.rate]}
    return {
        name: layer.rate.flatten().double().numpy().round(4).tolist() for name, layer in learned_layers(network).items()
    }


def uncertain(probs: Predictive, examples: Examples, count: int, most: bool = True) -> list[dict[str, Any]]:
    """The examples with the largest predictive entropy, most uncertain first; or else with the smallest."""
    assert probs.entropy is not None
    return [
        {
            "index": int(examples.index[i]),
            "pixels": (examples.x[i] * 16).round().int().tolist(),
            "predicted": int(probs.mean[i].argmax()),
            "truth": int(examples.y[i]),
            "entropy": round(float(probs.entropy[i]), 4),
            "probability": round(float(probs.mean[i].max()), 4),
        }
        for i in probs.entropy.argsort(descending=most)[:count].tolist()
    ]


@one_thread()
def run(settings: Settings, tick: Tick | None = None) -> dict[str, Any]:
    """Train and measure every contestant; what comes back is what is written as JSON."""
    began = time.perf_counter()
    data = load(settings)
    entries, networks = [], {}
    for contestant in CONTESTANTS.values():
        entry, network = _enter(contestant, data, settings, tick)
        entries.append(entry)
        networks[contestant.name] = contestant, network
    shown = min((e for e in entries if e["kind"].startswith("per")), key=lambda e: e["validation"])["name"]
    contestant, network = networks[shown]
    probs = predictive(network, contestant, data.test.x, settings, seed=0)
    digits, certain = (uncertain(probs, data.test, settings.pictures, most) for most in (True, False))
    result: dict[str, Any] = {
        "experiment": "demo",
        "settings": asdict(settings),
        "seeds": list(range(settings.seeds)),
        "data": {"name": "scikit-learn digits", "split_seed": SPLIT_SEED}
        | {k: len(v.y) for k, v in vars(data).items()},
        "selection": SELECTION,
        "provenance": provenance(),
        "contestants": entries,
        "comparisons": [compare(entries, shown, e["name"]) for e in entries if e["name"] != shown],
        "uncertain": {"contestant": shown, "seed": 0, "digits": digits, "certain": certain},
    }
    result["findings"] = findings(result)
    result["seconds"] = round(time.perf_counter() - began, 1)
    return result


def _enter(
    contestant: Contestant, data: Digits, settings: Settings, tick: Tick | None
) -> tuple[dict[str, Any], Network]:
    """One contestant's part of the result, and its network of seed 0."""

    histories: dict[tuple[float, int], RateHistory] = {}

    def trained(strength: float, seed: int) -> Network:
        history = histories.setdefault((strength, seed), {})
        return train(contestant, strength, seed, data.train, settings, tick, history)

    def validated(network: Network, seed: int) -> Predictive:
        return predictive(network, contestant, data.validation.x, settings, seed)

    def validation_nll(probs: Predictive) -> float:
        return measure(probs.mean, data.validation.y)["nll"]

    tried = {strength: trained(strength, seed=0) for strength in settings.strengths}
    search = {strength: validation_nll(validated(network, seed=0)) for strength, network in tried.items()}
    strength = min(search, key=lambda key: search[key])
    # Seed 0 of the search is seed 0 of the result: nothing is trained twice.
    networks = [tried[strength], *(trained(strength, seed) for seed in range(1, settings.seeds))]
    validation = [validated(network, seed) for seed, network in enumerate(networks)]
    tests = [predictive(net, contestant, data.test.x, settings, seed) for seed, net in enumerate(networks)]
    probs = [each.mean for each in tests]
    per_seed = [
        {
            "seed": seed,
            "validation": {"nll": validation_nll(validation[seed])},
            "test": measure(probs[seed], data.test.y),
            "rates": rates(network, contestant),
        }
        for seed, network in enumerate(networks)
    ]
    curve = reliability_curve(torch.cat(probs), data.test.y.repeat(settings.seeds))
    entry = {
        "name": contestant.name,
        "kind": contestant.kind,
        "strength": strength,
        "search": [{"strength": key, "validation_nll": value} for key, value in search.items()],
        "validation": float(np.mean([part["validation"]["nll"] for part in per_seed])),
        "test": {name: summary([part["test"][name] for part in per_seed]) for name in per_seed[0]["test"]},
        "rates": rate_ranges(per_seed) if contestant.rate != 0 else {},
        "rates_over_training": over_training([histories[strength, seed] for seed in range(settings.seeds)]),
        "reliability": {name: plain(values) for name, values in vars(curve).items()},
        "pavpu_curve": pavpu_curve(tests, data.test.y, validation),
        "per_seed": per_seed,
    }
    return entry, networks[0]


def compare(entries: Sequence[Mapping[str, Any]], name: str, rival: str, metric: str = "nll") -> dict[str, Any]:
    """The difference of two contestants, paired by seed, with a 95 % t-interval over seeds."""
    ours, theirs = (
        np.array([part["test"][metric] for part in entry["per_seed"]])
        for who in (name, rival)
        for entry in entries
        if entry["name"] == who
    )
    difference = summary((ours - theirs).tolist())
    interval = None
    if difference["se"] is not None and difference["mean"] is not None:
        from scipy.stats import t  # comes with scikit-learn

        reach = float(t.ppf(0.975, len(ours) - 1)) * difference["se"]
        interval = [difference["mean"] - reach, difference["mean"] + reach]
    return {"name": name, "rival": rival, "metric": metric, "difference": difference, "interval": interval}


def findings(result: Mapping[str, Any]) -> list[str]:
    """What the numbers say, in sentences that are made from them."""
    entries = result["contestants"]
    best, second, *_ = sorted(entries, key=lambda entry: entry["test"]["nll"]["mean"])
    ranked = [f"{entry['name']} ({entry['test']['nll']['mean']:.3f})" for entry in (best, second)]
    shown = result["uncertain"]["contestant"]
    sentences = [f"Lowest test NLL: {ranked[0]}, then {ranked[1]}."]
    sentences.append(f"Of the two learned contestants, {shown} has the lower validation NLL and is compared below.")
    sentences += [_in_words(comparison) for comparison in result["comparisons"]]
    for entry in entries:
        if entry["kind"] == "per layer":
            found = " and ".join(f"{layer['mean']:.2f}" for layer in entry["rates"].values())
            sentences.append(f"One rate per layer went from {result['settings']['start_rate']:.2f} to {found}.")
        elif entry["kind"] == "per unit":
            found = " and ".join(f"{layer['low']:.2f}–{layer['high']:.2f}" for layer in entry["rates"].values())
            sentences.append(f"Of the rates per unit nine in ten lie in {found}.")
    return sentences


def _in_words(comparison: Mapping[str, Any]) -> str:
    mean, interval = comparison["difference"]["mean"], comparison["interval"]
    pair = f"NLL of {comparison['name']} against {comparison['rival']}: {mean:+.3f}"
    if interval is None:
        sentence = f"{pair}; one seed cannot say whether that is more than chance."
    else:
        low, high = interval
        verdict = "better" if high < 0 else "worse" if low > 0 else "no clear difference"
        sentence = f"{pair} (95 % interval {low:+.3f} to {high:+.3f}): {verdict}."
    return sentence.replace("-", "−")
