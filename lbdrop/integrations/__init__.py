"""Learned rates where people already train: :mod:`~lbdrop.integrations.lightning` and
:mod:`~lbdrop.integrations.transformers`, and what both share, :mod:`~lbdrop.integrations.rates`.

None of these packages is imported with ``lbdrop``.
"""
