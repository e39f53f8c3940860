"""Rules for learning rates that balanced noise is compared with. They use the package's public contract and nothing else."""
