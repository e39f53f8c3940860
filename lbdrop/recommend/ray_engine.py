"""Scoring on the machines of a Ray cluster: its data sets hand out the numbers of parts, and a part is scored as anywhere else.

The folder of the work is self-contained: the model as it is now, the question, the histories. Every worker reads the model
once. Only numbers of parts travel, results lie in the folder, so a machine that dies costs the part it was at: Ray gives that
number to another, and the part comes out the same.

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
from lbdrop.recommend import saving, score_files
from lbdrop.recommend.history_parts import Histories, Ranges, Spool
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.queries import Question

if TYPE_CHECKING:
    from lbdrop.recommend.model import Recommender

__all__ = ["ENGINES", "engine_named", "on_ray"]

ENGINES = ("local", "ray")


def engine_named(name: str, address: str | None = None) -> score_files.Engine:
    """The engine of this name; ``address`` is of a Ray cluster."""
    if name not in ENGINES:
        raise DropoutError(f"engine: want one of {', '.join(ENGINES)}, got {name!r}")
    if name == "local":
        if address is not None:
            raise DropoutError(f"address: want it with engine='ray' alone, got {address!r} with engine='local'")
        return score_files.here
    return partial(on_ray, address=address)


def on_ray(
    model: "Recommender", histories: Histories, question: Question, folder: Path, numbers: Sequence[int],
    advance: score_files.Advance, address: str | None = None,
) -> None:  # fmt: skip
    """Score the parts on all machines of a cluster, which see ``folder`` under the same name."""
    if not numbers:
        return
    try:
        import ray
        import ray.data
        from ray.exceptions import RayError
    except ModuleNotFoundError as error:
        raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[ray]'") from error
    _write_job(model, histories, question, folder.resolve())
    started = _connect(ray, address)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False  # there is one already
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        resources = ray.cluster_resources()
        each: dict[str, Any] = {"num_gpus": 1} if resources.get("GPU") else {"num_cpus": 1}
        most = max(int(resources.get("GPU") or resources.get("CPU", 1)), 1)
        parts = ray.data.from_items([{"part": number} for number in numbers], override_num_blocks=len(numbers))
        scored = parts.map_batches(
            _Worker,
            fn_constructor_args=(str(folder.resolve()),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(most, len(numbers))),
            **each,
        )
        for _ in scored.iter_rows():
            advance(1.0)
    except RayError as error:
        raise _in_one_line(error) from error
    finally:
        if started:
            ray.shutdown()


class _Worker:
    """One process of the cluster: the model, read once, and a part whenever asked."""

    def __init__(self, folder: str):
        from lbdrop.recommend.model import Recommender

        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DropoutError(f"{folder}: want this folder on every machine of the cluster, got a machine without it")
        self.model = Recommender.load(self.folder / "model")
        job = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
        chosen = job["question"].pop("items")
        self.question = Question(**job["question"], items=None if chosen is None else tuple(chosen))
        known = self.model.known()
        self.histories: Histories = (
            Ranges(known.users(None), job["size"])
            if job["size"] is not None
            else Spool(known, None, job["parts"], "", self.folder / "histories")
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for number in map(int, batch["part"]):
            path = self.folder / "parts" / score_files.part_name(number)
            if not path.exists():  # asked a second time, where a machine died with the answer
                score_files.score_part(self.model, self.histories[number], self.question, path)
        return {"part": batch["part"]}


# -------------------------------------------------------------------------------------------------------------- pieces


def _write_job(model: "Recommender", histories: Histories, question: Question, folder: Path) -> None:
    """Model and question as a worker reads them; the users of :class:`Ranges` are the model's own there."""
    asked = histories.asked if isinstance(histories, Ranges) else None
    kept = None if asked is None else Interactions(asked.rows, asked.ids, model.items_)
    if not (folder / "model").exists():
        saving.write(folder / "model", model.saved(kept))
    size = histories.size if isinstance(histories, Ranges) else None
    write_json(folder / "job.json", {"question": asdict(question), "size": size, "parts": len(histories)})


def _connect(ray: Any, address: str | None) -> bool:
    """Join the cluster; whether this call did."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told what runs here, unless the user wants it
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        try:
            ray.init(address=address or "auto", **quiet)
        except ConnectionError:
            if address is not None:
                raise
            ray.init(
                address="local", include_dashboard=False, **quiet
            )  # nobody's cluster is found: the cores of this machine
    except Exception as error:  # Ray has no class of its own for these
        reason = str(error).splitlines()[0]
        wanted = "a Ray cluster" if address is None else f"that of a Ray cluster, got {address!r}"
        raise DropoutError(f"address: want {wanted} ({reason}); see ray start --head") from error
    return True


def _in_one_line(error: BaseException) -> Exception:
    """What a worker found wrong, without the machines' own stack of calls."""
    cause: BaseException | None = error
    while cause is not None:
        inner = getattr(cause, "cause", None) or cause
        if isinstance(inner, OSError | DropoutError):
            return inner
        cause = cause.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return DropoutError(f"ray: {lines[-1] if lines else type(error).__name__}")
