"""What the peers' programs are told by the environment, and raw samples to and from arrays."""

import os
from pathlib import Path

import numpy as np

from tools.bench.inference.workloads import WORKLOADS, Array, Compute

WORKLOAD = WORKLOADS[os.environ["BENCH_WORKLOAD"]]
PORT = int(os.environ["BENCH_PORT"])
JSON = os.environ["BENCH_FORM"] == "json"


def load() -> Compute:
    """The model, for the process that computes."""
    # Imported here: the processes that only speak HTTP do without PyTorch.
    from tools.bench.inference.networks import compute_of

    return compute_of(WORKLOAD, Path(os.environ["BENCH_EXPORT"]))


def sample_of(body: bytes) -> Array:
    """One sample of a body: little-endian float32, row-major."""
    return np.frombuffer(body, "<f4").reshape(WORKLOAD.shape)
