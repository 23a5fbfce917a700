"""A real server process, with helpers for requests."""

import contextlib
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray

from tests.training.programs import Program, free_port, start, until

INFER = "/v2/models/digits/infer"


@dataclass
class Server:
    """A server process and a client for it."""

    program: Program
    client: httpx.Client
    port: int
    admin: httpx.Client
    """A client for the administration port."""

    @property
    def ready(self) -> httpx.Response:
        return self.client.get("/v2/health/ready")

    @property
    def in_flight(self) -> float:
        return value(self.metrics, "inference_requests_in_flight")

    @property
    def metrics(self) -> str:
        return self.admin.get("/metrics").text

    def wait_until_ready(self) -> None:
        until(lambda: self.ready.status_code == 200, seconds=240)


@contextlib.contextmanager
def serving(
    folder: Path, export: Path, verify: Any = True, name: str = "digits", **settings: object
) -> Iterator[Server]:
    """Start a server that writes its output to `folder`, and stop it at the end."""
    port, admin_port = free_port(), free_port()
    environment = {
        "INFERENCE_MODEL_NAME": name,
        "INFERENCE_MODEL_PATH": str(export),
        "INFERENCE_HOST": "127.0.0.1",
        "INFERENCE_PORT": str(port),
        "INFERENCE_ADMIN_PORT": str(admin_port),
        "INFERENCE_THREADS": "1",
        "INFERENCE_POLL_SECONDS": "0.05",
        "INFERENCE_NOTICE_SECONDS": "0.5",
        # A busy machine may delay a test program for longer than a real client may stall.
        "INFERENCE_HEADER_SECONDS": "120",
        "INFERENCE_STALL_SECONDS": "120",
        "INFERENCE_BODY_SECONDS": "240",
        # Interval between exports of spans, in milliseconds; the SDK's default is 5000.
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    } | {f"INFERENCE_{name.upper()}": str(value) for name, value in settings.items()}
    program = start("inference", [], environment, folder / "output")
    scheme = "https" if "tls_key" in settings else "http"
    url = f"{scheme}://127.0.0.1"
    with (
        httpx.Client(base_url=f"{url}:{port}", timeout=30, verify=verify) as client,
        httpx.Client(base_url=f"{url}:{admin_port}", timeout=30, verify=verify) as admin,
    ):
        server = Server(program, client, port, admin)
        try:
            until(lambda: answers(server))
            yield server
        finally:
            if program.process.is_alive():
                program.signal(signal.SIGTERM)
                with contextlib.suppress(Exception):
                    program.exit_code()


def answers(server: Server) -> bool:
    try:
        return server.client.get("/v2/health/live").status_code == 200
    except httpx.TransportError:
        assert server.program.process.is_alive(), server.program.text
        return False


def request_body(images: NDArray[Any], **fields: object) -> dict[str, object]:
    """Return the body of an inference request."""
    tensor = {"name": "images", "shape": list(images.shape), "datatype": "FP32"}
    return {"inputs": [tensor | {"data": images.ravel().tolist()}], **fields}


def output(response: httpx.Response, name: str) -> list[Any]:
    """Return the values of an output."""
    outputs = response.json()["outputs"]
    return next(tensor["data"] for tensor in outputs if tensor["name"] == name)


def value(text: str, series: str) -> float:
    """Return the value of a Prometheus series; 0 if it is missing."""
    lines = [line for line in text.splitlines() if line.startswith(series + " ")]
    return float(lines[0].split()[-1]) if lines else 0


def digits(count: int) -> NDArray[np.float32]:
    """Return images in the size that the model expects."""
    from training.data import held_out_digits

    images, _ = held_out_digits()
    return images[:count]


def private_bytes(server: Server) -> int:
    """Return the memory of the server and its workers, excluding shared mapped files.

    Pages shared with the fork server are counted in full: their proportional share would grow
    whenever a process of another test ends.
    """
    process = psutil.Process(server.program.process.pid)
    siblings = [each.pid for each in process.parent().children() if each != process]
    workers = [pid for pid in siblings if _arenas(pid) & _arenas(process.pid)]
    assert workers
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (process.pid, *workers)]
    kib = re.findall(r"^(?:Anonymous|Pss_Shmem): +(\d+) kB$", "\n".join(rollups), re.MULTILINE)
    return sum(map(int, kib)) * 1024


def _arenas(pid: int) -> set[int]:
    """Return the inodes of a process's arenas, which identify a server's workers.

    A server shares arenas only with its workers. The parent process is the same fork server for
    the processes of all tests.
    """
    arenas = set()
    with contextlib.suppress(FileNotFoundError):  # the process may have ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if "memfd:inference" in str(descriptor.readlink()):
                arenas.add(descriptor.stat().st_ino)
    return arenas
