"""The model server on a GPU: correct outputs, throughput, and recovery from a CUDA error."""

import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from devcluster.paths import CHECKOUT
from inference.config import InferenceConfig
from inference.engine import backends
from inference.engine.backends import Choice, example, load_backend
from inference.engine.handlers import Classifier
from tools.bench.gpu.paths import require
from tools.bench.outcome import spread
from tools.bench.processes import free_port
from workload.manifest import read_manifest

CLIENTS: Final = (1, 16, 64)
PROCESSES: Final = 8
SECONDS: Final = 2.0
BATCHES: Final = (1, 8, 32)
TOLERANCES: Final = {"fp32": 0.01, "bf16": 0.05, "fp16": 0.02}
"""Maps precisions to the maximum difference from fp32 probabilities on the CPU."""

Images = NDArray[np.float32]


@dataclass(frozen=True)
class Request:
    """A request in the V2 protocol with binary tensors."""

    body: bytes
    headers: dict[str, str]

    @classmethod
    def of(cls, images: Images) -> "Request":
        """Return the request for a batch of images."""
        tensor = {"name": "images", "shape": list(images.shape), "datatype": "FP32"}
        size = {"parameters": {"binary_data_size": images.nbytes}}
        output = {"name": "probabilities", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor | size], "outputs": [output]}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        return cls(head + images.tobytes(), length)

    def send(self, connection: http.client.HTTPConnection) -> tuple[int, bytes, int]:
        """Send the request; return the status, the body, and the length of the body's JSON part."""
        connection.request("POST", "/v2/models/bench/infer", self.body, self.headers)
        response = connection.getresponse()
        content = response.read()
        return response.status, content, int(response.headers.get(next(iter(self.headers)), 0))


@contextlib.contextmanager
def served(export: Path, log: Path, **settings: object) -> Iterator[int]:
    """Serve an export during a block; yield the port.

    Raise CheckError if the server does not start.
    """
    port, admin = free_port(), free_port()
    values = {"model_name": "bench", "model_path": export, "host": "127.0.0.1", "port": port}
    values |= {"admin_port": admin, "poll_seconds": 0.2, "notice_seconds": 0, **settings}
    environment = {f"INFERENCE_{name.upper()}": str(value) for name, value in values.items()}
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "inference"],
            env=os.environ | environment,
            cwd=CHECKOUT,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as server,
    ):
        try:
            _await_ready(server, admin, log)
            yield port
        finally:
            server.terminate()
            server.wait(60)


def _await_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        text = log.read_text()
        # The export exists, so a server that is waiting for one has failed to load it.
        failed = server.poll() is not None or '"event": "waiting"' in text
        require(not failed and time.monotonic() < deadline, text[-3000:])
        time.sleep(0.1)


def outputs(export: Path, log: Path, images: Images, **settings: object) -> Images:
    """Return the probabilities that a server computes."""
    with served(export, log, **settings) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        status, content, length = Request.of(images).send(connection)
        require(status == 200, content)
        return np.frombuffer(content[length:], "<f4").reshape(len(images), -1)


def check_outputs(export: Path, directory: Path, backend: str, precision: str) -> dict[str, Any]:
    """Compare the outputs of a backend on the GPU with outputs computed on the CPU in fp32."""
    shape = read_manifest(export).input_shape
    images = np.random.default_rng(0).random((5, *shape), np.float32)
    expected = outputs(export, directory / "cpu.log", images, device="cpu")
    log = directory / f"{backend}-{precision}.log"
    settings = {"device": "cuda", "backend": backend, "precision": precision}
    difference = float(np.abs(outputs(export, log, images, **settings) - expected).max())
    require(difference <= TOLERANCES[precision], difference)
    require("cuda_graphs_unavailable" not in log.read_text(), log.read_text())
    return {"largestDifference": difference}


class Failing(Classifier):
    """A classifier in which a batch of one image with negative values causes a CUDA error."""

    def predict(self, decoded: Tensor) -> Tensor:
        """Return probabilities, or leave the GPU unusable for this process."""
        if len(decoded) == 1 and bool((decoded < 0).any()):
            index = torch.full((1,), 1000, device=decoded.device)
            return decoded.flatten(1)[:, :10][index]
        return super().predict(decoded)


def check_recovery(export: Path, directory: Path) -> dict[str, Any]:
    """Cause a CUDA error in a worker, and wait until a request succeeds again."""
    shape = read_manifest(export).input_shape
    good, bad = np.zeros((1, *shape), np.float32), np.full((1, *shape), -1, np.float32)
    log, handler = directory / "recovered.log", f"{__name__}:Failing"
    with served(export, log, device="cuda", handler=handler) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        status, content, _ = Request.of(good).send(connection)
        require(status == 200, content)
        started = time.monotonic()
        status, content, _ = Request.of(bad).send(connection)
        require(status >= 400, content)
        while (answer := Request.of(good).send(connection)[0]) != 200:
            # While the worker restarts, these are the only acceptable statuses.
            waiting = answer in (429, 503, 504) and time.monotonic() < started + 60
            require(waiting, answer)
            time.sleep(0.05)
        seconds = time.monotonic() - started
    require("device-side assert" in log.read_text(), log.read_text())
    return {"statusOfTheFailure": status, "secondsUntilServed": round(seconds, 2)}


def measure_rates(export: Path, directory: Path, **settings: object) -> dict[str, Any]:
    """Return requests per second and latency (ms) in closed loops, keyed by number of clients."""
    shape = read_manifest(export).input_shape
    images = np.random.default_rng(0).random((1, *shape), np.float32)
    log = directory / "rates.log"
    found: dict[str, Any] = {}
    with (
        served(export, log, device="cuda", **settings) as port,
        ProcessPoolExecutor(PROCESSES) as pool,
    ):
        for clients in CLIENTS:
            shares = [len(range(n, clients, PROCESSES)) for n in range(min(clients, PROCESSES))]
            jobs = [pool.submit(_send_requests, port, images, share, SECONDS) for share in shares]
            latencies = sorted(latency for job in jobs for latency in job.result())
            found[str(clients)] = {
                "requestsPerSecond": round(len(latencies) / SECONDS, 1),
                "medianMs": round(statistics.median(latencies) * 1e3, 3),
                "p99Ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 3),
            }
    return found


def _send_requests(port: int, images: Images, clients: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    request, end = Request.of(images), time.perf_counter() + seconds

    def loop() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while (started := time.perf_counter()) < end:
            status, content, _ = request.send(connection)
            require(status == 200, content)
            latencies.append(time.perf_counter() - started)

    threads = [threading.Thread(target=loop) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies


@torch.inference_mode()
def measure_optimizations(export: Path, directory: Path) -> dict[str, dict[str, Any]]:
    """Return the time (ms) of a forward pass without the server, for each set of optimizations."""
    device, largest = torch.device("cuda"), max(BATCHES)
    manifest = read_manifest(export)
    config = InferenceConfig(
        model_name="model", model_path=PurePosixPath(export), max_batch=largest
    )
    choice = Choice(config, manifest, device, directory)
    half = replace(choice, config=config.model_copy(update={"precision": "bf16"}))
    torch.set_float32_matmul_precision("highest")
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = {"fp32 without TF32": _times(backends._load(choice), choice)}
    found["TF32"] = _times(backends._with_precision(backends._load(choice), choice), choice)
    folded = backends._optimize(backends._load(choice), choice)
    found["TF32, folded, channels last"] = _times(folded, choice)
    found["TF32, folded, channels last, graphs"] = _times(load_backend(choice), choice)
    reduced = backends._with_precision(backends._optimize(backends._load(half), half), half)
    found["bf16, folded, channels last"] = _times(reduced, half)
    found["bf16, folded, channels last, graphs"] = _times(load_backend(half), half)
    return found


def _times(network: Callable[[Tensor], Tensor], choice: Choice) -> dict[str, Any]:
    return {str(size): _milliseconds(partial(network, example(choice, size))) for size in BATCHES}


def _milliseconds(action: Callable[[], object]) -> dict[str, float]:
    samples = []
    for turn in range(-5, 50):
        torch.cuda.synchronize()
        started = time.perf_counter()
        action()
        torch.cuda.synchronize()
        if turn >= 0:
            samples.append((time.perf_counter() - started) * 1e3)
    return {name: round(value, 4) for name, value in spread(samples).items()}
