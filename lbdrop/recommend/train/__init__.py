"""Training epoch by epoch, with its measures on held-out users."""
