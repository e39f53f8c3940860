"""``python -m lbdrop``: the command line, also for ``torchrun -m lbdrop``, which starts it in several processes."""

import sys

from lbdrop.cli import app

if __name__ == "__main__":
    try:
        app(prog_name="lbdrop")
    finally:
        dist = sys.modules.get("torch.distributed")  # only a command that has imported torch has a group to end
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
