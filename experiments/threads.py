"""One thread for a while, where networks are small."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: in layers this small a second one gains little, and on a busy machine it costs a lot.

    Where another process wants a core, threads wait for each other after every operation, and these are short ones
    (LOG.md).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
