"""Simulated GPU driver of a real node, with metrics derived from the processes that use the GPUs.

The driver writes a JSON list of the GPUs to every connection on its socket. Each GPU has DCGM
fields, which the simulated exporter serves (devcluster/toolchain/modules/tools). A process uses the
GPUs listed in its NVIDIA_VISIBLE_DEVICES, which the device plugin sets. All values are simulated:

- utilization: CPU time since the last sample, divided among the process's GPUs; 100% is one core
- memory: private resident memory, divided in the same way
- power: from POWER_IDLE when idle to POWER_LIMIT at full load
- Xid errors: none

A faults file maps GPU indices to overridden fields: {"0": {"DCGM_FI_DEV_XID_ERRORS": 79}}.
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

from devcluster import DevclusterError

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
POWER_IDLE, POWER_LIMIT = 55.0, 400.0
SAMPLE_INTERVAL = 0.5
"""Minimum time (s) between samples. Until the next sample is due, requests receive the last one."""

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
    """GPUs of a node, read from a file that the device plugin also reads."""

    model_config = ConfigDict(extra="forbid")

    product: str
    memory_mib: int
    uuids: list[str]


class Gpus:
    """GPUs of the node with their current metrics. Not thread-safe."""

    def __init__(self, hardware: Hardware, faults: Path) -> None:
        self._hardware = hardware
        self._faults = faults
        self._sampled = float("-inf")
        self._seconds: dict[psutil.Process, float] = {}
        self._measured: list[Fields] = []

    def read(self) -> list[dict[str, Any]]:
        """Return the index, UUID, product and fields of each GPU.

        Raise DevclusterError if the faults file is invalid.
        """
        if time.monotonic() - self._sampled >= SAMPLE_INTERVAL:
            self._sample()
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

    def _sample(self) -> None:
        """Derive the metrics of all GPUs from the processes that use them."""
        now = time.monotonic()
        elapsed, self._sampled = now - self._sampled, now
        seconds: dict[psutil.Process, float] = {}
        use: dict[str, float] = defaultdict(float)
        memory: dict[str, float] = defaultdict(float)
        for pid, assigned in self._processes():
            # A process that exits in the meantime is not counted.
            with contextlib.suppress(psutil.Error):
                # process_iter returns cached objects, which may describe an earlier process with
                # the same ID.
                process = psutil.Process(pid)
                times, resident = process.cpu_times(), process.memory_info()
                spent = seconds[process] = times.user + times.system
                # CPU time before the first sample of a process is not counted.
                new = spent - self._seconds.get(process, spent)
                for uuid in assigned:
                    use[uuid] += 100 * new / elapsed / len(assigned)
                    memory[uuid] += (resident.rss - resident.shared) / 2**20 / len(assigned)
        self._seconds = seconds
        self._measured = [self._fields(use[uuid], memory[uuid]) for uuid in self._hardware.uuids]

    def _processes(self) -> Iterator[tuple[int, set[str]]]:
        known = set(self._hardware.uuids)
        for process in psutil.process_iter(["environ"]):
            environment: Mapping[str, str] = process.info["environ"] or {}
            if assigned := known.intersection(environment.get(VISIBLE_DEVICES, "").split(",")):
                yield process.pid, assigned

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
        faults = _FAULTS.validate_json(file.read_bytes())
    except ValidationError as error:
        raise DevclusterError(f"{file} does not map GPU indices to fields: {error}") from error
    if unknown := faults.keys() - set(range(count)):
        raise DevclusterError(
            f"{file}: GPU {min(unknown)} does not exist; use an index from 0 to {count - 1}"
        )
    return faults


def server(socket: Path, gpus: Gpus) -> socketserver.UnixStreamServer:
    """Return a server that handles one connection at a time and writes the list of GPUs to it."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(gpus.read()).encode())

    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    return socketserver.UnixStreamServer(str(socket), Handler)


def main(hardware: str, socket: str, faults: str) -> None:
    """Serve until the process is terminated. The arguments are paths."""
    gpus = Hardware.model_validate_json(Path(hardware).read_bytes())
    with server(Path(socket), Gpus(gpus, Path(faults))) as running:
        running.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
