"""Servers in the comparison. Each is started with the command that its project documents."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.bench.inference import formats
from tools.bench.inference.formats import Decode, Encode, Format
from tools.bench.inference.workloads import MAX_BATCH, MAX_DELAY_MS, MAX_QUEUE, Workload
from tools.environments import environment

TOLERANCE: Final = 5e-5
"""Maximum difference between a server's probabilities and those of PyTorch.

Results depend slightly on the batch size, because the order of floating-point operations differs.
"""

PROGRAMS: Final = "tools.bench.inference.servers"
PLAIN_HANDLER: Final = f"{PROGRAMS}.plain_handler:PlainNetwork"


@dataclass(frozen=True)
class Task:
    """Parameters for starting a server."""

    workload: Workload
    data_format: Format
    export: Path
    port: int
    scratch: Path
    """Empty working directory of the server."""
    python: Path
    """Python interpreter of the server's environment."""


@dataclass(frozen=True)
class Start:
    """Command that starts a server, and its additional environment variables."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contestant:
    """A server in the comparison."""

    name: str
    environment: str
    """`<environment>` in requirements/bench-<environment>.txt; empty for our server."""
    path: str
    """URL path of inference requests."""
    start: Callable[[Task], Start]
    encode: Mapping[Format, Encode]
    decode: Mapping[Format, Decode]
    note: str
    """Configuration of the server, for the report."""
    tolerance: float = TOLERANCE

    @property
    def python(self) -> Path:
        """Interpreter of the peer's environment, which inherits our installation of PyTorch.

        Our server uses the current interpreter.
        """
        if not self.environment:
            return Path(sys.executable)
        return environment(f"bench-{self.environment}", inherits=True)


def _ours(task: Task, **overrides: str) -> Start:
    values = {
        "MODEL_NAME": "model",
        "MODEL_PATH": str(task.export),
        "HOST": "127.0.0.1",
        "PORT": str(task.port),
        "ADMIN_PORT": str(task.port + 1),
        "DEVICE": "cpu",
        "THREADS": "1",
        "MAX_BATCH": str(MAX_BATCH),
        "MAX_DELAY_MS": str(MAX_DELAY_MS),
        "MAX_QUEUE": str(MAX_QUEUE),
        "REQUEST_SECONDS": str(task.workload.deadline),
        "NOTICE_SECONDS": "0",
    }
    if not task.workload.is_network:
        values["HANDLER"] = f"{PROGRAMS}.noop_handler:NoOp"
    elif task.workload.plain:
        values["HANDLER"] = PLAIN_HANDLER
    environment = {f"INFERENCE_{name}": value for name, value in (values | overrides).items()}
    return Start((str(task.python), "-m", "inference"), environment)


def _program(name: str, *arguments: str) -> Callable[[Task], Start]:
    return lambda task: Start((str(task.python), "-m", f"{PROGRAMS}.{name}", *arguments))


def _mosec(task: Task) -> Start:
    environment = {
        "MOSEC_ADDRESS": "127.0.0.1",
        "MOSEC_PORT": str(task.port),
        "MOSEC_CAPACITY": str(MAX_QUEUE),
        "MOSEC_TIMEOUT": "30000",
        "MOSEC_LOG_LEVEL": "warning",
        "MOSEC_PATH": str(task.scratch / "sockets"),
    }
    return Start((str(task.python), "-m", f"{PROGRAMS}.mosec_server"), environment)


def _bentoml(task: Task) -> Start:
    program = task.python.parent / "bentoml"
    return Start(
        (str(program), "serve", f"{PROGRAMS}.bentoml_service:Model", "--port", str(task.port)),
        {
            "BENTOML_HOME": str(task.scratch / "bentoml"),
            "BENTOML_DO_NOT_TRACK": "True",
            "BENTOML_CONFIG_OPTIONS": "api_server.logging.access.enabled=false",
        },
    )


def _mlserver(task: Task) -> Start:
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": task.port,
        "grpc_port": task.port + 1,
        "metrics_endpoint": None,
        "parallel_workers": 0,
    }
    model = {
        "name": "model",
        "implementation": f"{PROGRAMS}.mlserver_model.Model",
        "max_batch_size": MAX_BATCH,
        "max_batch_time": MAX_DELAY_MS / 1000,
    }
    (task.scratch / "settings.json").write_text(json.dumps(settings))
    (task.scratch / "model-settings.json").write_text(json.dumps(model))
    return Start((str(task.python.parent / "mlserver"), "start", "."))


OURS: Final = "ours"

CONTESTANTS: Final = {
    one.name: one
    for one in (
        Contestant(
            OURS,
            "",
            "/v2/models/model/infer",
            _ours,
            {"raw": formats.v2_binary, "json": formats.v2_json},
            {"raw": formats.from_v2, "json": formats.from_v2},
            "V2 over REST with binary tensors; one worker process",
        ),
        Contestant(
            "mosec",
            "mosec",
            "/inference",
            _mosec,
            {"raw": formats.raw, "json": formats.values},
            {"raw": formats.from_raw, "json": formats.from_list},
            "HTTP in Rust; one worker process",
        ),
        Contestant(
            "LitServe",
            "litserve",
            "/predict",
            _program("litserve_server"),
            {"raw": formats.raw, "json": formats.values},
            {"raw": formats.from_raw, "json": formats.from_list},
            "fast_queue; one API server; one worker process; unbounded queue",
        ),
        Contestant(
            "BentoML",
            "bentoml",
            "/predict",
            _bentoml,
            {"raw": formats.raw, "json": formats.batch_of_values},
            {"raw": formats.from_list, "json": formats.from_list},
            "one worker; adaptive batching without a fixed delay; raw bytes in, JSON out",
        ),
        Contestant(
            "MLServer",
            "mlserver",
            "/v2/models/model/infer",
            _mlserver,
            {"raw": formats.v2_base64, "json": formats.v2_json},
            {"raw": formats.from_v2, "json": formats.from_v2},
            "V2 over REST with base64-encoded bytes; `parallel_workers: 0` (inference runs in the "
            "server process); unbounded queue",
        ),
        Contestant(
            "FastAPI",
            "fastapi",
            "/predict",
            _program("fastapi_server"),
            {"raw": formats.raw, "json": formats.values},
            {"raw": formats.from_raw, "json": formats.from_list},
            "uvicorn with uvloop and httptools; no batching; inference runs in the event loop; "
            "unbounded queue",
        ),
    )
}

PLAIN: Final = "plain PyTorch"
BACKENDS: Final = {"eager": TOLERANCE, "compile": TOLERANCE, "aotinductor": TOLERANCE, "int8": 1.0}
"""Maps backends to tolerances. The outputs of int8 may differ by any amount: the difference is
reported, but does not count as a failure."""


def backends() -> list[Contestant]:
    """Return our server with plain PyTorch and with each backend."""
    ours = CONTESTANTS[OURS]
    plain = replace(ours, name=PLAIN, start=functools.partial(_ours, HANDLER=PLAIN_HANDLER))
    others = []
    for backend, tolerance in BACKENDS.items():
        start = functools.partial(_ours, BACKEND=backend)
        others.append(replace(ours, name=backend, tolerance=tolerance, start=start))
    return [plain, *others]


_VERSION_CODE: Final = "import importlib.metadata as m, json; print(json.dumps(m.version('{}')))"


def versions(contestants: Sequence[Contestant]) -> dict[str, str]:
    """Return the versions of PyTorch and of each peer."""
    found = {"PyTorch": version("torch")}
    for one in contestants:
        if one.environment:
            code = _VERSION_CODE.format(one.environment)
            found[one.name] = json.loads(subprocess.check_output([str(one.python), "-c", code]))
    return found
