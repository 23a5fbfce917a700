"""Settings (from `BENCH_*` variables), model and samples of the third-party servers."""

import os
from pathlib import Path

import numpy as np

from tools.bench.inference.workloads import WORKLOADS, Array, Compute

WORKLOAD = WORKLOADS[os.environ["BENCH_WORKLOAD"]]
PORT = int(os.environ["BENCH_PORT"])
JSON = os.environ["BENCH_FORMAT"] == "json"


def load() -> Compute:
    """Load the model. Call this only in the process that runs the model."""
    # Imported here, so that processes that only serve HTTP do not load PyTorch.
    from tools.bench.inference.networks import compute_of

    return compute_of(WORKLOAD, Path(os.environ["BENCH_EXPORT"]))


def sample_of(body: bytes) -> Array:
    """Return the sample in a body: little-endian float32, row-major."""
    return np.frombuffer(body, "<f4").reshape(WORKLOAD.shape)
