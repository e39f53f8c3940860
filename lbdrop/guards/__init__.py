"""What is watched or put back: numbers that are not finite, processes, modes, checkpointed blocks."""
