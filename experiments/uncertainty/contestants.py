"""The contestants: each a function from a bench to what it fitted, all from the same examples.

Validation examples choose what a contestant has to choose, and are never trained on: rates of the grid, learned rates of the
held-out rule, IVON's step and Laplace's prior. Temperature scaling of all uses them again.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import lbdrop
from experiments.uncertainty.bench import SAMPLES, Bench, Fitted, losses, samples_under_masks
from experiments.uncertainty.posteriors import ivon, laplace_all, laplace_last, swag
from lbdrop import metrics
from lbdrop.dropout import noise_layers

__all__ = ["CONTESTANTS", "Contestant"]

Contestant = Callable[[Bench], Fitted]
GRID = (0.05, 0.1, 0.2, 0.3, 0.5)
MEMBERS = 4
EARLY_SHARE = 0.25


def deterministic(bench: Bench) -> Fitted:
    model, seconds = bench.fixed(0.0)
    return Fitted(bench.deterministic(model), seconds, copies=1, passes=1)


def fixed_off(bench: Bench) -> Fitted:
    """Dropout of .1 in training, off at test."""
    model, seconds = bench.fixed(0.1)
    return Fitted(bench.deterministic(model), seconds, copies=1, passes=1)


def mc_tenth(bench: Bench) -> Fitted:
    """MC dropout at .1."""
    return _monte_carlo(bench, 0.1, "usual")


def mc_best(bench: Bench) -> Fitted:
    """MC dropout at the rate of five that validation likes best under masks."""
    return _best(bench, "usual")


def mc_best_everywhere(bench: Bench) -> Fitted:
    """The same with dropout behind every layer."""
    return _best(bench, "everywhere")


def mc_improved(bench: Bench) -> Fitted:
    """Channel-wise, behind every layer, four masks an example in training: uncertainty-baselines' improved MC dropout, .1."""
    model = bench.network(0.1, "everywhere" if "everywhere" in bench.task.places else "usual")
    loss_of = lambda x, y: losses(model, x.repeat(MEMBERS, *[1] * (x.dim() - 1)), y.repeat(MEMBERS)).mean()  # noqa: E731
    seconds = bench.train(model, loss_of=loss_of)
    return Fitted(samples_under_masks(model, bench.seed), seconds, copies=1)


def early_dropout(bench: Bench) -> Fitted:
    """A rate of .1 in the first quarter of training, then none (Liu et al. 2023)."""
    model = bench.network(0.1)
    last = int(EARLY_SHARE * bench.steps)

    def switch_off(step: int) -> None:
        if step == last:
            for m in model.modules():
                if isinstance(m, nn.Dropout | nn.Dropout2d):
                    m.p = 0.0
                elif isinstance(m, nn.MultiheadAttention):
                    m.dropout = 0.0

    seconds = bench.train(model, each_step=switch_off)
    return Fitted(bench.deterministic(model), seconds, copies=1, passes=1)


def held_out(bench: Bench) -> Fitted:
    """Rates learned from validation examples, one a layer."""
    return _learned(bench, *bench.learned())


def held_out_units(bench: Bench) -> Fitted:
    """One rate a unit, or channel."""
    return _learned(bench, *bench.learned(per="unit"))


def held_out_one(bench: Bench) -> Fitted:
    """One rate for the network."""
    return _learned(bench, *bench.learned(per="model"))


def held_out_everywhere(bench: Bench) -> Fitted:
    """Dropout behind every layer, its rates learned."""
    return _learned(bench, *bench.learned(places="everywhere"))


def bound(bench: Bench) -> Fitted:
    """The paper's bound, one rate a layer."""
    return _learned(bench, *bench.learned("bound"))


def bound_everywhere(bench: Bench) -> Fitted:
    """The paper's bound with dropout behind every layer."""
    return _learned(bench, *bench.learned("bound", places="everywhere"))


def depth_fixed(bench: Bench) -> Fitted:
    """Stochastic depth at .1, on at test."""
    return _monte_carlo(bench, 0.1, "stochastic depth")


def depth_learned(bench: Bench) -> Fitted:
    """Stochastic depth whose rates are learned."""
    return _learned(bench, *bench.learned(places="stochastic depth"))


def ensemble(bench: Bench) -> Fitted:
    """Four networks from other weights and batches."""
    trained = [bench.fixed(0.0, member=member) for member in range(MEMBERS)]
    each = [bench.deterministic(model) for model, _ in trained]
    return Fitted(lambda x, samples: torch.cat([one(x, 1) for one in each]), sum(s for _, s in trained),
                  copies=MEMBERS, passes=MEMBERS)  # fmt: skip


def ensemble_learned(bench: Bench) -> Fitted:
    """Four networks with learned rates, five masks each: as many passes as one under twenty."""
    trained = [bench.learned(member=member) for member in range(MEMBERS)]
    each = [samples_under_masks(model, bench.seed + member) for member, (model, _) in enumerate(trained)]

    def probabilities(x: Tensor, samples: int) -> Tensor:
        return torch.cat([one(x, max(1, samples // MEMBERS)) for one in each])

    return Fitted(probabilities, sum(s for _, s in trained), copies=MEMBERS)


def _monte_carlo(bench: Bench, rate: float, places: str, seconds: float | None = None) -> Fitted:
    model, took = bench.fixed(rate, places)
    copy = bench.network(rate, places)
    copy.load_state_dict(model.state_dict())
    if places == "stochastic depth":
        lbdrop.convert(copy, scheme="mc", example=bench.parts.train[0][:2], verbose=False)
    return Fitted(samples_under_masks(copy.eval(), bench.seed), seconds or took, copies=1, extra={"rates": [rate]})


def _best(bench: Bench, places: str) -> Fitted:
    x, y = bench.parts.validation
    each = {rate: _monte_carlo(bench, rate, places) for rate in GRID}
    best = min(GRID, key=lambda rate: float(metrics.nll(each[rate].probabilities(x, SAMPLES).mean(0), y)))
    each[best].seconds = sum(one.seconds for one in each.values())
    return each[best]


def _learned(bench: Bench, model: nn.Module, seconds: float) -> Fitted:
    rates = [round(layer.p, 4) for layer in noise_layers(model).values()]
    return Fitted(samples_under_masks(model, bench.seed), seconds, copies=1, extra={"rates": rates})


CONTESTANTS: dict[str, tuple[Contestant, str]] = {
    "deterministic": (deterministic, "no dropout"),
    "fixed-off": (fixed_off, "dropout .1, off at test"),
    "mc-.1": (mc_tenth, "MC dropout, .1"),
    "mc-best": (mc_best, "MC dropout, best of five"),
    "mc-best-everywhere": (mc_best_everywhere, "MC dropout everywhere, best of five"),
    "mc-improved": (mc_improved, "improved MC dropout"),
    "early": (early_dropout, "early dropout"),
    "held-out": (held_out, "**held-out rule**"),
    "held-out-everywhere": (held_out_everywhere, "**held-out rule everywhere**"),
    "held-out-unit": (held_out_units, "**held-out rule, a rate a unit**"),
    "held-out-model": (held_out_one, "**held-out rule, one rate**"),
    "bound": (bound, "**the paper's bound**"),
    "bound-everywhere": (bound_everywhere, "**the bound everywhere**"),
    "depth-.1": (depth_fixed, "stochastic depth, .1"),
    "depth-learned": (depth_learned, "**stochastic depth, held-out rule**"),
    "swag": (swag, "SWAG"),
    "laplace-last": (laplace_last, "Laplace, last layer"),
    "ivon": (ivon, "IVON"),
    "ensemble": (ensemble, "ensemble of 4"),
    "ensemble-learned": (ensemble_learned, "**ensemble of 4, held-out rule**"),
    "laplace-kron": (laplace_all, "Laplace, all layers"),
}
"""By name: what it is called in a table, those of this library in bold type."""
PLACES = {"everywhere": ("mc-best-everywhere", "held-out-everywhere", "bound-everywhere"),
          "stochastic depth": ("depth-.1", "depth-learned")}  # fmt: skip


def of_task(name: str, places: tuple[str, ...]) -> list[str]:
    """Those that a task has: its places, more than one rate to share, layers that Kronecker factors are defined for."""
    missing = {each for place, names in PLACES.items() if place not in places for each in names}
    missing |= {"laplace-kron"} if "transformer" in name else set()
    missing |= {"held-out-model"} if "MLP" not in name and "transformer" not in name else set()
    return [each for each in CONTESTANTS if each not in missing]
