"""Exports of untrained models, and requests for the handler `Probe`."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from inference.engine.engine import ModelEngine
from inference.engine.interface import Answer, Tensors
from inference.engine.pool import Pool
from training.export.artifacts import write_weights
from workload.files import sha256_of
from workload.manifest import WEIGHTS_FILE, Manifest, Weights, write_manifest
from workload.models import build

Serve = Callable[..., contextlib.AbstractAsyncContextManager[ModelEngine]]


def write_model(folder: Path, network: nn.Module, **manifest: Any) -> Manifest:
    """Write the export of an untrained network, in the format of the training program."""
    folder.mkdir(exist_ok=True)
    path = folder / WEIGHTS_FILE
    write_weights(path, network)
    weights = Weights(size=path.stat().st_size, sha256=sha256_of(path))
    written = Manifest(weights=weights, metrics={}, torch_version=torch.__version__, **manifest)
    write_manifest(folder, written)
    return written


def write_probe(folder: Path, seed: int = 0) -> Manifest:
    """Write an export with samples of three numbers, for the handlers in `probes`."""
    torch.manual_seed(seed)
    return write_model(folder, nn.Linear(3, 1), model="probe", input_shape=(3,), outputs=1)


def write_digits(folder: Path) -> Manifest:
    torch.manual_seed(0)
    network = build("digits-net", {}, 10, (1, 8, 8))
    classes = tuple(f"digit {number}" for number in range(10))
    return write_model(folder, network, model="digits-net", input_shape=(1, 8, 8), classes=classes)


def linear(outputs: int, input_shape: tuple[int, ...]) -> nn.Module:
    """A minimal custom model."""
    return nn.Linear(input_shape[0], outputs)


def sample(action: int, seconds: float = 0, value: float = 0, count: int = 1) -> dict[str, Any]:
    """Return a request for the handler `Probe` with `count` equal samples."""
    return {"inputs": np.tile(np.array([[action, seconds, value]], np.float32), (count, 1))}


def worker_pids(engine: ModelEngine) -> list[int]:
    """Return the process IDs of the workers of all versions."""
    workers = [worker for pool in engine._pools for worker in pool._workers]
    return [worker._process.pid or 0 for worker in workers if worker._process is not None]


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.005)


async def infer(pool: Pool | None, inputs: Tensors, deadline: float = math.inf) -> Answer:
    """Compute a request. If this call is canceled, remove the request from the queue."""
    assert pool is not None
    request = pool.submit(inputs, deadline)
    try:
        return await request.future
    except asyncio.CancelledError:
        pool.drop(request)
        raise


async def outcome(request: Awaitable[Answer]) -> Answer | Exception:
    """Return the answer to a request, or its error."""
    try:
        return await request
    except Exception as error:
        return error
