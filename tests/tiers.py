"""Handling of tiers that this machine cannot run: tests are skipped, or fail in CI."""

import os
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI must run every tier, but this one cannot run: {reason}")
    pytest.skip(reason)
