"""The laboratory's commands: ``lbdrop demo``, ``report`` and ``reproduce``."""
