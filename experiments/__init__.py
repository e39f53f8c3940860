"""The laboratory: experiments with their data, networks and reports; not part of the installed package."""
