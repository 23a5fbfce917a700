"""Starts the cluster's one process, recognises it later, and ends it with everything below."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil

from devcluster import cgroups
from devcluster.cluster_init import group_name
from devcluster.paths import CHECKOUT, Layout, cache_root, state_root
from devcluster.spec import Kind


@dataclass(frozen=True)
class Record:
    """What was started. A process is the same one only with the same start, in the same boot."""

    pid: int
    started: int
    """In clock ticks since the boot, which no change of the clock moves (proc_pid_stat(5))."""
    boot: str
    kind: str
    cgroups: list[str]
    checkout: str

    def process(self) -> psutil.Process | None:
        """The cluster's process, if it still runs."""
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            process = psutil.Process(self.pid)
            same = (start_ticks(self.pid), boot_id()) == (self.started, self.boot)
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def start_ticks(pid: int) -> int:
    """When a process was started, in clock ticks since the boot. OSError when it is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def boot_id() -> str:
    """Another one after every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_record(layout: Layout) -> Record | None:
    """The record of the last start; None where there is none that can be read."""
    try:
        return Record(**json.loads(layout.record.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def running(layout: Layout) -> Record | None:
    """The record of the running cluster."""
    record = read_record(layout)
    return record if record is not None and record.process() is not None else None


def launch(
    kind: Kind, layout: Layout, binaries: Path, files: Path, api_port: int | None = None
) -> Record:
    """Starts the cluster's process, detached from this one. It logs to `init.log`.

    `files`: the chart repository (real), or Volcano's definitions (simulated).
    """
    layout.logs.mkdir(parents=True, exist_ok=True)
    groups = []
    if kind is Kind.REAL:
        machine = cgroups.hierarchies()
        cgroups.create(group_name(kind), machine)
        groups = cgroups.create(f"{group_name(kind)}/supervisor", machine)
    host = os.open("/proc/self/ns/net", os.O_RDONLY)
    last = str(host) if kind is Kind.REAL else str(api_port)
    unshare = ["unshare", *_namespaces(kind), "--fork", "--kill-child", "--mount-proc"]
    program = [sys.executable, "-m", "devcluster.cluster_init", kind, str(binaries), str(files)]
    with (layout.logs / "init.log").open("ab") as log:
        process = subprocess.Popen(
            [*unshare, "--propagation", "private", "--", *program, last],
            env={**_environment(binaries), "PYTHONPATH": str(CHECKOUT)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(host,),
            preexec_fn=partial(cgroups.enter, groups),
        )
    os.close(host)
    folders = [str(folder.parent) for folder in groups]
    started = start_ticks(process.pid)
    record = Record(process.pid, started, boot_id(), kind, folders, str(CHECKOUT))
    part = layout.record.with_suffix(".part")
    part.write_text(json.dumps(asdict(record)))
    part.replace(layout.record)
    return record


def _namespaces(kind: Kind) -> list[str]:
    if kind is Kind.REAL:
        return ["--mount", "--net", "--pid"]
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    return [*user, "--mount", "--pid"]


def _environment(binaries: Path) -> dict[str, str]:
    """What the cluster's processes may know of the user's environment: little."""
    environment = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    # Absolute: inside, another folder is the present one.
    environment["GPU_PLATFORM_CACHE"] = str(cache_root())
    environment["GPU_PLATFORM_STATE"] = str(state_root())
    environment["PATH"] = f"{binaries}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    return environment


def stop(layout: Layout) -> list[str]:
    """Ends the cluster and removes its control groups; returns what could not be removed.

    Mounts, interfaces, firewall rules and processes live in its namespaces and end with it.
    Also cleans up after a cluster that was killed or did not survive a reboot.
    """
    record = read_record(layout)
    if record is None:
        return []
    process = record.process()
    if process is not None:
        kill(process)
    folders = [Path(folder) for folder in record.cgroups]
    for pid in cgroups.processes(folders):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    left = cgroups.remove(folders)
    layout.record.unlink(missing_ok=True)
    return [str(folder) for folder in left]


def kill(process: psutil.Process) -> None:
    """Ends a cluster's process with everything below it, and waits until all of it is gone."""
    # unshare ignores SIGTERM, and --kill-child ends process 1 of the namespaces with it.
    below = process.children(recursive=True)
    process.kill()
    with contextlib.suppress(psutil.TimeoutExpired, ChildProcessError):
        process.wait(5)
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in below) and time.monotonic() < deadline:
        psutil.wait_procs(below, timeout=0.05)
