r"""Is a budget spent well? The noise of the rates' gradient on transformers and convolutions, at equal cost.

$$ \mathrm{merit} = \frac{V\,t}{V_\mathrm{ARM}\,t_\mathrm{ARM}}, \qquad
   V = \sum_l \mathrm{Var}\Big[\widehat{\partial_{\alpha_l}} \mathcal{L}\Big] $$

over the masks and over which steps learn, on a batch of scikit-learn's digits, a rate for each layer. The weights have been
trained for some steps. ARM is the paper's, in every step; the default learns in a share $s$ of its steps, where its
variance is $V = (V_1 + (1 - s)\,\lvert g \rvert^2) / s$, from the variance $V_1$ and the mean $g$ of learning steps; both
are measured. A time is what a step costs on average, optimiser left out.

Run: ``python -m benchmarks.variance_networks`` (some minutes on one core).
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lbdrop
from benchmarks.overhead_tasks import Block
from lbdrop.dropout import learned_layers
from lbdrop.io.records import provenance, write_json

__all__ = ["main", "run"]

RATES = (0.1, 0.3)
CONTESTANTS = {"default": None, "arm": "arm", "double-cv-4": "double-cv-4"}


class Rows(nn.Module):
    """A transformer that reads an image row by row."""

    def __init__(self, rate: float, norm_first: bool):
        super().__init__()
        self.embed, self.places = nn.Linear(8, 32), nn.Parameter(torch.zeros(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, rate, batch_first=True, norm_first=norm_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x[:, 0]) + self.places).mean(1))


def convolutions(rate: float, kind: Callable[[float], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), kind(rate), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        kind(rate), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(rate),
        nn.Linear(32, 10),
    )  # fmt: skip


def residual(rate: float) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    for module in model.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = rate
    return model


class Recurrent(nn.Module):
    def __init__(self, rate: float):
        super().__init__()
        self.lstm = nn.LSTM(8, 48, 2, batch_first=True, dropout=rate)
        self.drop, self.head = nn.Dropout(rate), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.lstm(x[:, 0])[0][:, -1]))


NETWORKS: dict[str, Callable[[float], nn.Module]] = {
    "transformer, post-norm": lambda rate: Rows(rate, norm_first=False),
    "transformer, pre-norm": lambda rate: Rows(rate, norm_first=True),
    "CNN, Dropout2d": lambda rate: convolutions(rate, nn.Dropout2d),
    "CNN, Dropout": lambda rate: convolutions(rate, nn.Dropout),
    "residual CNN, BatchNorm and Dropout2d": residual,
    "LSTM": Recurrent,
    "MLP": lambda rate: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(rate), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(rate),
        nn.Linear(256, 10),
    ),
}  # fmt: skip


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def run(name: str, rate: float, draws: int, steps: int, seed: int, batches: int = 6) -> dict[str, Any]:
    """One network: train it, draw the gradient of its rates under every contestant in turn."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels).long()
    model = NETWORKS[name](rate)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for rows in (torch.randint(len(y), (64,)) for _ in range(steps)):
        optimizer.zero_grad()
        losses(model, x[rows], y[rows]).mean().backward()
        optimizer.step()
    lbdrop.convert(model, verbose=False)
    logits = [layer.logit for layer in learned_layers(model).values()]
    rule = lbdrop.Bound(model, 1797, weight=0.0)
    objectives = {each: lbdrop.Objective(model, rule, estimator=estimator) for each, estimator in CONTESTANTS.items()}

    def gradient(objective: lbdrop.Objective, learns: bool, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        objective.runner.toss = lambda: 0.0 if learns else 1.0
        start = time.process_time()
        model.zero_grad(set_to_none=True)
        objective(losses, *batch).backward()
        taken = time.process_time() - start
        return torch.stack([logit.grad for logit in logits if logit.grad is not None]).double(), taken

    plain = [[] for _ in range(batches)]
    found: dict[str, list[list[Tensor]]] = {each: [[] for _ in range(batches)] for each in objectives}
    times: dict[str, list[float]] = {each: [] for each in (*objectives, "weights alone")}
    rows = [torch.randint(len(y), (64,)) for _ in plain]
    for _ in range(draws):
        for index, batch in enumerate((x[each], y[each]) for each in rows):
            for each, objective in objectives.items():
                grad, taken = gradient(objective, True, batch)
                found[each][index].append(grad)
                times[each].append(taken)
            times["weights alone"].append(gradient(objectives["default"], False, batch)[1])
    plan = objectives["default"].runner.plan
    assert plan is not None
    share = plan.share

    def variance(each: str) -> tuple[float, float]:
        """Within batches; of a thinned estimate where the contestant learns in a share of the steps."""
        stacks = torch.stack([torch.stack(grads) for grads in found[each]])
        # A learning step has divided its gradient by the share already.
        s = share if each == "default" else 1.0
        within = (stacks * s).var(1).mean(0).sum()
        square = ((stacks * s).mean(1).square().mean(0) - (stacks * s).var(1).mean(0) / draws).clamp(min=0).sum()
        total = (within + (1 - s) * square) / s
        return float(total), float((1 - s) * square / s / total)

    result = {}
    for each in objectives:
        seconds = statistics.median(times[each])
        if each == "default":
            seconds = share * seconds + (1 - share) * statistics.median(times["weights alone"])
        total, thinning = variance(each)
        result[each] = {"variance": total, "of which thinning": thinning, "seconds": seconds}
    for entry in result.values():
        entry["merit"] = entry["variance"] * entry["seconds"] / (result["arm"]["variance"] * result["arm"]["seconds"])
    return {"network": name, "rate": rate, "seed": seed, "plan": f"{plan.estimator.name}, share {share:.3f}", **result}


def main(
    draws: Annotated[int, typer.Option(help="Gradients of each contestant and batch.")] = 40,
    steps: Annotated[int, typer.Option(help="Of training before.")] = 200,
    seeds: Annotated[int, typer.Option(help="Networks of each kind.")] = 2,
    out: Annotated[Path | None, typer.Option(help="The JSON to write, and to go on from.")] = None,
) -> None:
    """Variance × time of the default beside ARM's."""
    torch.set_num_threads(1)
    path = out or Path(__file__).parent / "results" / "variance_networks.json"
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name in NETWORKS:
            for rate in RATES:
                runs.append(run(name, rate, draws, steps, seed))
                print(
                    runs[-1]["network"],
                    rate,
                    runs[-1]["plan"],
                    *(f"{e}: {runs[-1][e]['merit']:.2f}" for e in CONTESTANTS),
                )
                settings = {"draws": draws, "steps": steps, "batch": 64, "batches": 6, "scale": "inverted"}
                write_json(path, {"settings": settings, "provenance": provenance("cpu"), "runs": runs})


if __name__ == "__main__":
    typer.run(main)
