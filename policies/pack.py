"""All rules of the pack, and the pack itself."""

from __future__ import annotations

import io
import sys
from typing import Any

from pulumi_policy import PolicyPack

from policies import (
    budget,
    gpu,
    images,
    inference,
    manifests,
    scheduling,
    security,
    shared_memory,
    storage,
    tenancy,
)
from policies.binding import Binding
from policies.decoding import share_decoding
from policies.rule import Rule

NAME = "gpu-platform"

RULES: list[Rule[Any]] = [
    *manifests.RULES,
    *gpu.RULES,
    *shared_memory.RULES,
    *scheduling.RULES,
    *images.RULES,
    *security.RULES,
    *tenancy.RULES,
    *storage.RULES,
    *inference.RULES,
    *budget.RULES,
]


def serve() -> None:
    """Starts the pack's server for the engine and does not return."""
    share_decoding()
    # The SDK writes its port to stdout and does not flush it; the engine waits for it for ever.
    unbuffered = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(unbuffered, write_through=True)
    PolicyPack(
        name=NAME,
        policies=Binding().policies(RULES),
        description="Rules that keep a Kubernetes cluster with GPUs safe",
    )
