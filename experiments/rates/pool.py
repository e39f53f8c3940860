"""One run of the table by its names, for :mod:`experiments.processes`."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

from experiments.processes import KEEPING_MEMORY, outcomes, usual_workers
from experiments.rates import run, tasks
from experiments.rates.record import CONTESTANTS
from lbdrop.errors import DropoutError

__all__ = ["KEEPING_MEMORY", "Job", "outcomes", "usual_workers"]


class Job(NamedTuple):
    """One run by its names, so that another process can be given it."""

    task: str
    contestant: str
    seed: int
    folder: Path
    epochs: int | None = None
    device: str = "cpu"

    def run(self) -> dict[str, Any] | DropoutError:
        """Its record, or the error: other runs do not depend on this one."""
        task, contestant = tasks.TASKS[self.task], CONTESTANTS[self.contestant]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return run.run(task, contestant, self.seed, folder=self.folder, epochs=self.epochs, device=self.device)
            except DropoutError as error:
                return error
            except (RuntimeError, MemoryError) as error:  # memory that is short, most of all that of a GPU
                said = (str(error) or type(error).__name__).splitlines()[0]
                return DropoutError(f"{said}; where memory is short, try fewer workers")

    @property
    def label(self) -> str:
        return f"{self.task}, {CONTESTANTS[self.contestant].label}, seed {self.seed}"
