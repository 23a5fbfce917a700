"""What a test does whose tier this machine can not run: skip with the reason, but fail in CI."""

import os
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI runs every tier, and this one can not run: {reason}")
    pytest.skip(reason)
