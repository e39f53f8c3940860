"""Checks around a training step, states that are restored after it, and what a prediction may promise."""
