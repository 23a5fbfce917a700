"""Texts for property tests."""

from hypothesis import strategies as st

ALPHABET = st.characters(exclude_categories=["Cs"])
"""Every character that UTF-8 encodes: the default of `text()`, whose first use in a checkout
encodes all characters and takes a second of CPU time per process."""
