"""Fixtures shared with the tests of the embedded cluster."""

from tests.devcluster.conftest import home, install, layout, simulated

__all__ = ["home", "install", "layout", "simulated"]
