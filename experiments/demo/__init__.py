"""The demo: learned against fixed dropout on digits and in a generated shop."""
