"""Methods without a network: closed forms, least squares and popularity."""
