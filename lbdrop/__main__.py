"""The command line: ``lbdrop``, ``python -m lbdrop``, and ``torchrun -m lbdrop``, which starts it in several processes.

Ctrl-C ends in one line, whenever it comes and however often. While modules are imported, which C code may answer with any
error, the process ends at once: all that is written is written so that this is no harm.
"""

import os
import signal
import sys
import time
from types import FrameType

__all__ = ["main"]

TOGETHER = 3.0
"""Seconds in which further signals mean the same."""
_last = -TOGETHER


def main() -> None:
    """Run the command that the arguments name."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell's background job ignores it
        signal.signal(signal.SIGINT, _stop)
        sys.unraisablehook = _unraisable
    try:
        from lbdrop.cli import app

        app(prog_name="lbdrop")
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
    finally:
        dist = sys.modules.get("torch.distributed")  # only a command that has imported torch has a group to end
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
        if signal.getsignal(signal.SIGINT) is _stop:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left takes no time


def _stop(number: int, frame: FrameType | None) -> None:
    global _last
    before, _last = _last, time.monotonic()
    if _last - before < TOGETHER:
        return
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _exit()
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(error: "sys.UnraisableHookArgs") -> None:
    """Ctrl-C while Python tidies up, as at the end of a generator, would be printed and forgotten."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        _exit()
    sys.__unraisablehook__(error)


def _exit() -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


if __name__ == "__main__":
    main()
