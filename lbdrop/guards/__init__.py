"""Checks around a training step, and states that are restored after it: NaN, checkpointing, processes, modes."""
