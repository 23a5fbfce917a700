"""What a driver would tell of a node's GPUs, measured on the processes that have them.

One runs on each real node. Whoever connects to its socket gets a JSON list of the GPUs, each with
fields of DCGM, which the simulated exporter passes on (toolchain/modules/tools).
A process has the GPUs that its NVIDIA_VISIBLE_DEVICES names, as the device plugin sets it. Nothing
of a real GPU is in the numbers:

- use: processor time since the last look, a process's shared out among its GPUs; 100 % is one core;
- memory: what the processes have for themselves (resident and not shared), shared out likewise;
- power: from POWER_IDLE without use to POWER_LIMIT at full use;
- Xid: none.

A file of faults says otherwise, by the GPU's number: {"0": {"DCGM_FI_DEV_XID_ERRORS": 79}}.
"""

import contextlib
import json
import socketserver
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from devcluster.errors import DevclusterError

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
POWER_IDLE, POWER_LIMIT = 55.0, 400.0
SHORTEST = 0.5
"""Seconds between two looks; who asks again before gets the last one's numbers."""

Field = Literal[
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_XID_ERRORS",
]
Fields = dict[Field, float]
_FAULTS = TypeAdapter(dict[int, dict[Field, FiniteFloat]])


class Hardware(BaseModel):
    """What the node has: written by its maker, and read by the device plugin as well."""

    model_config = ConfigDict(extra="forbid")

    product: str
    memory_mib: int
    uuids: list[str]


class Gpus:
    """The node's GPUs. Not for several threads."""

    def __init__(self, hardware: Hardware, faults: Path) -> None:
        self._hardware = hardware
        self._faults = faults
        self._looked = float("-inf")
        self._seconds: dict[psutil.Process, float] = {}
        self._measured: list[Fields] = []

    def read(self) -> list[dict[str, Any]]:
        """Number, UUID, product and fields of each. DevclusterError when the faults are wrong."""
        if time.monotonic() - self._looked >= SHORTEST:
            self._look()
        faults = _read_faults(self._faults, len(self._measured))
        return [
            {
                "index": index,
                "uuid": self._hardware.uuids[index],
                "product": self._hardware.product,
                "fields": {**fields, **faults.get(index, {})},
            }
            for index, fields in enumerate(self._measured)
        ]

    def _look(self) -> None:
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        seconds: dict[psutil.Process, float] = {}
        use: dict[str, float] = defaultdict(float)
        memory: dict[str, float] = defaultdict(float)
        for process, held in self._processes():
            # One that ends meanwhile had what it had until the last look.
            with contextlib.suppress(psutil.Error):
                times, resident = process.cpu_times(), process.memory_info()
                spent = seconds[process] = times.user + times.system
                # A process that was not there at the last look begins to count now.
                new = spent - self._seconds.get(process, spent)
                for uuid in held:
                    use[uuid] += 100 * new / passed / len(held)
                    memory[uuid] += (resident.rss - resident.shared) / 2**20 / len(held)
        self._seconds = seconds
        self._measured = [self._fields(use[uuid], memory[uuid]) for uuid in self._hardware.uuids]

    def _processes(self) -> Iterator[tuple[psutil.Process, set[str]]]:
        known = set(self._hardware.uuids)
        for process in psutil.process_iter(["environ"]):
            environment: Mapping[str, str] = process.info["environ"] or {}
            if held := known.intersection(environment.get(VISIBLE, "").split(",")):
                yield process, held

    def _fields(self, use: float, memory_mib: float) -> Fields:
        use, used = min(use, 100.0), min(round(memory_mib), self._hardware.memory_mib)
        return {
            "DCGM_FI_DEV_GPU_UTIL": round(use),
            "DCGM_FI_DEV_FB_USED": used,
            "DCGM_FI_DEV_FB_FREE": self._hardware.memory_mib - used,
            "DCGM_FI_DEV_POWER_USAGE": POWER_IDLE + (POWER_LIMIT - POWER_IDLE) * use / 100,
            "DCGM_FI_DEV_XID_ERRORS": 0,
        }


def _read_faults(file: Path, count: int) -> dict[int, dict[Field, float]]:
    if not file.exists():
        return {}
    try:
        found = _FAULTS.validate_json(file.read_bytes())
    except ValidationError as error:
        raise DevclusterError(f"{file} does not say which field of which GPU: {error}") from error
    if unknown := found.keys() - set(range(count)):
        raise DevclusterError(
            f"{file} names GPU {min(unknown)}, and the node has {count}: write 0 to {count - 1}"
        )
    return found


def server(socket: Path, gpus: Gpus) -> socketserver.UnixStreamServer:
    """Tells whoever connects to the socket, one after another, of the GPUs."""

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(gpus.read()).encode())

    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    return socketserver.UnixStreamServer(str(socket), Answer)


def main(hardware: str, socket: str, faults: str) -> None:
    """Serves until it is ended; the arguments are paths."""
    has = Hardware.model_validate_json(Path(hardware).read_bytes())
    with server(Path(socket), Gpus(has, Path(faults))) as served:
        served.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
