"""``python -m lbdrop``: the command line, also for ``torchrun -m lbdrop``, which starts it in several processes."""

import torch.distributed as dist

from lbdrop.cli import app

if __name__ == "__main__":
    try:
        app(prog_name="lbdrop")
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
