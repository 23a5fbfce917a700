"""Tests whose tier this machine cannot run: they are skipped with the reason, and fail in CI."""

import os
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI runs every tier, and this one can not run: {reason}")
    pytest.skip(reason)
