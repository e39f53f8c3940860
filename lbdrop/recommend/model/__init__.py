"""The variational autoencoder: its settings, its masks and its losses."""
