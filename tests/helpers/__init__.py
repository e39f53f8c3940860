"""What several tests build on: small models, data and stand-ins."""
