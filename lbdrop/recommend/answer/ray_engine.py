"""Scoring on the machines of a Ray cluster: Ray distributes the numbers of parts, and each worker scores a part as usual.

The work folder is self-contained: model, query, histories. Every worker reads the model once. Only part numbers travel, and
the results go to the folder. If a machine dies, Ray gives its part to another one, and the result is the same.

Moritz et al., Ray: A Distributed Framework for Emerging AI Applications, OSDI 2018.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbdrop.errors import DropoutError
from lbdrop.io.records import write_json
from lbdrop.recommend import saving
from lbdrop.recommend.answer import score_files
from lbdrop.recommend.answer.history_parts import HistoryParts, RangeParts, SpooledParts
from lbdrop.recommend.answer.queries import Query
from lbdrop.recommend.data.interactions import Interactions

if TYPE_CHECKING:
    from lbdrop.recommend.recommender import Recommender

__all__ = ["ENGINES", "get_engine", "score_on_ray"]

ENGINES = ("local", "ray")


def get_engine(name: str, address: str | None = None) -> score_files.Engine:
    """The engine of this name; ``address`` is of a Ray cluster."""
    if name not in ENGINES:
        raise DropoutError(f"engine: want one of {', '.join(ENGINES)}, got {name!r}")
    if name == "local":
        if address is not None:
            raise DropoutError(f"address: want it with engine='ray' alone, got {address!r} with engine='local'")
        return score_files.score_locally
    return partial(score_on_ray, address=address)


def score_on_ray(
    model: "Recommender", histories: HistoryParts, query: Query, folder: Path, numbers: Sequence[int],
    advance: score_files.Advance, address: str | None = None,
) -> None:  # fmt: skip
    """Score the parts on all machines of a cluster; ``folder`` must have the same path on all of them."""
    if not numbers:
        return
    try:
        import ray
        import ray.data
        from ray.exceptions import RayError
    except ModuleNotFoundError as error:
        raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[ray]'") from error
    _write_job(model, histories, query, folder.resolve())
    connected = _connect(ray, address)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False  # score_to has its own
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        resources = ray.cluster_resources()
        per_worker: dict[str, Any] = {"num_gpus": 1} if resources.get("GPU") else {"num_cpus": 1}
        workers = max(int(resources.get("GPU") or resources.get("CPU", 1)), 1)
        parts = ray.data.from_items([{"part": number} for number in numbers], override_num_blocks=len(numbers))
        scored = parts.map_batches(
            _Worker,
            fn_constructor_args=(str(folder.resolve()),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(workers, len(numbers))),
            **per_worker,
        )
        for _ in scored.iter_rows():
            advance(1.0)
    except RayError as error:
        raise _one_line_error(error) from error
    finally:
        if connected:
            ray.shutdown()


class _Worker:
    """A process of the cluster: reads the model once, then scores parts."""

    def __init__(self, folder: str):
        from lbdrop.recommend.recommender import Recommender

        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DropoutError(f"{folder}: want this folder on every machine of the cluster, got a machine without it")
        self.model = Recommender.load(self.folder / "model")
        job = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
        items = job["query"].pop("items")
        self.query = Query(**job["query"], items=None if items is None else tuple(items))
        fitted = self.model.fitted_ids()
        self.histories: HistoryParts = (
            RangeParts(fitted.users(None), job["size"])
            if job["size"] is not None
            else SpooledParts(fitted, None, job["parts"], "", self.folder / "histories")
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for number in map(int, batch["part"]):
            path = self.folder / "parts" / score_files.part_name(number)
            if not path.exists():  # Ray may repeat a part whose machine died after writing it
                score_files.score_part(self.model, self.histories[number], self.query, path)
        return {"part": batch["part"]}


# -------------------------------------------------------------------------------------------------------------- pieces


def _write_job(model: "Recommender", histories: HistoryParts, query: Query, folder: Path) -> None:
    """Model and query for the workers; the users of :class:`RangeParts` are saved as the model's own."""
    users = histories.users if isinstance(histories, RangeParts) else None
    interactions = None if users is None else Interactions(users.rows, users.ids, model.items_)
    if not (folder / "model").exists():
        saving.write(folder / "model", model.saved(interactions))
    size = histories.size if isinstance(histories, RangeParts) else None
    write_json(folder / "job.json", {"query": asdict(query), "size": size, "parts": len(histories)})


def _connect(ray: Any, address: str | None) -> bool:
    """Connect to the cluster; False if there was a connection already."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports, unless the user wants them
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        try:
            ray.init(address=address or "auto", **quiet)
        except ConnectionError:
            if address is not None:
                raise
            ray.init(address="local", include_dashboard=False, **quiet)  # no cluster was found: use this machine
    except Exception as error:  # Ray has no class of its own for these
        reason = str(error).splitlines()[0]
        wanted = "a Ray cluster" if address is None else f"that of a Ray cluster, got {address!r}"
        raise DropoutError(f"address: want {wanted} ({reason}); see ray start --head") from error
    return True


def _one_line_error(error: BaseException) -> Exception:
    """A worker's error without Ray's stack traces."""
    cause: BaseException | None = error
    while cause is not None:
        inner = getattr(cause, "cause", None) or cause
        if isinstance(inner, OSError | DropoutError):
            return inner
        cause = cause.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return DropoutError(f"ray: {lines[-1] if lines else type(error).__name__}")
