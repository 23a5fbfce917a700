"""Fixtures that the tests of the embedded cluster have as well."""

from tests.devcluster.conftest import home, install, layout, simulated

__all__ = ["home", "install", "layout", "simulated"]
