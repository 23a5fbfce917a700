"""Functions that start, find and stop the cluster's process and all its children.

Only one command at a time may start or stop a cluster. A second command fails with an error that
names the first one.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
from filelock import FileLock, Timeout
from pydantic import PositiveInt, TypeAdapter

from devcluster import DevclusterError
from devcluster.cluster_init import group_name
from devcluster.nodes import cgroups
from devcluster.paths import CHECKOUT, Layout, cache_root, state_root
from devcluster.spec import Kind


@dataclass(frozen=True)
class Record:
    """Record of a started cluster. The start time and the boot ID make the process ID unique."""

    pid: PositiveInt
    started: int
    """Start time in clock ticks since boot, unaffected by clock changes (proc_pid_stat(5))."""
    boot: str
    kind: str
    cgroups: list[str]
    checkout: str

    def process(self) -> psutil.Process | None:
        """Return the cluster's process if it is still running, otherwise None."""
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            process = psutil.Process(self.pid)
            same = (start_ticks(self.pid), boot_id()) == (self.started, self.boot)
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot.

    Raise FileNotFoundError or ProcessLookupError if the process has exited.
    """
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def boot_id() -> str:
    """Return the kernel's boot ID, which changes with every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_record(layout: Layout) -> Record | None:
    """Return the record of the last start, or None if it is missing or damaged.

    Raise OSError if it exists but cannot be read, because the cluster may then be running.
    """
    try:
        return TypeAdapter(Record).validate_json(layout.record.read_text())
    except (FileNotFoundError, ValueError):
        return None


def running(layout: Layout) -> Record | None:
    """Return the record of the running cluster, or None."""
    record = read_record(layout)
    return record if record is not None and record.process() is not None else None


def has_other_tools(record: Record, binaries: Path) -> bool:
    """Return whether a running cluster was started with tools from another directory."""
    process = record.process()
    return process is not None and str(binaries) not in process.cmdline()


def launch(
    kind: Kind,
    layout: Layout,
    binaries: Path,
    files: Path,
    api_port: int | None = None,
    volcano: str = "",
) -> Record:
    """Start the cluster's process, detached from this one. It logs to `init.log`.

    Args:
        kind: Kind of the cluster.
        layout: Paths of the cluster.
        binaries: Directory of the tools.
        files: Directory of the chart repository (real) or of Volcano's files (simulated).
        api_port: Port of the API server (simulated).
        volcano: Version of Volcano's scheduler (simulated); empty for the default.
    """
    layout.logs.mkdir(parents=True, exist_ok=True)
    groups = []
    if kind is Kind.REAL:
        hierarchies = cgroups.hierarchies()
        cgroups.create(group_name(kind), hierarchies)
        groups = cgroups.create(f"{group_name(kind)}/supervisor", hierarchies)
    host_network = os.open("/proc/self/ns/net", os.O_RDONLY)
    network_or_port = str(host_network) if kind is Kind.REAL else str(api_port)
    unshare = ["unshare", *namespaces(kind), "--fork", "--kill-child", "--mount-proc"]
    program = [sys.executable, "-m", "devcluster.cluster_init", kind, str(binaries), str(files)]
    with (layout.logs / "init.log").open("ab") as log:
        process = subprocess.Popen(
            [*unshare, "--propagation", "private", "--", *program, network_or_port, volcano],
            env={**_environment(binaries), "PYTHONPATH": str(CHECKOUT)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(host_network,),
            preexec_fn=partial(cgroups.enter, groups),
        )
    os.close(host_network)
    directories = [str(directory.parent) for directory in groups]
    started = start_ticks(process.pid)
    record = Record(process.pid, started, boot_id(), kind, directories, str(CHECKOUT))
    part = layout.record.with_suffix(".part")
    part.write_text(json.dumps(asdict(record)))
    part.replace(layout.record)
    return record


def namespaces(kind: Kind) -> list[str]:
    """Return the options of unshare(1) for the namespaces of a cluster."""
    if kind is Kind.REAL:
        return ["--mount", "--net", "--pid"]
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    return [*user, "--mount", "--pid"]


def _environment(binaries: Path) -> dict[str, str]:
    """Return the environment of the cluster's processes, with some of the user's variables."""
    environment = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    # Absolute paths, because the working directory of the processes is different.
    environment["GPU_PLATFORM_CACHE"] = str(cache_root())
    environment["GPU_PLATFORM_STATE"] = str(state_root())
    environment["KUBERC"] = "off"  # as in devcluster/__main__.py
    environment["PATH"] = f"{binaries}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    return environment


def stop(layout: Layout) -> list[str]:
    """Stop the cluster and remove its control groups; return the groups that remain.

    Mounts, interfaces, firewall rules and processes belong to the cluster's namespaces and
    disappear with them. This function also cleans up after a killed cluster or a reboot. While
    another cluster of the same kind is running, the groups are kept, because both clusters use
    the same group names.
    """
    record = read_record(layout)
    if record is None:
        return []
    process = record.process()
    if process is not None:
        kill(process)
    shared = any(_clusters(record.kind))
    directories = [] if shared else [Path(directory) for directory in record.cgroups]
    for pid in cgroups.processes(directories):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remaining = cgroups.remove(directories)
    layout.record.unlink(missing_ok=True)
    return [str(directory) for directory in remaining]


def kill(process: psutil.Process) -> None:
    """Kill a cluster's process and all its children, and wait until they have exited."""
    # unshare ignores SIGTERM. With --kill-child, killing unshare kills PID 1 of the namespaces.
    children = process.children(recursive=True)
    process.kill()
    with contextlib.suppress(psutil.TimeoutExpired, ChildProcessError):
        process.wait(5)
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        psutil.wait_procs(children, timeout=0.05)


def stop_orphans(kind: Kind) -> int:
    """Stop all orphaned clusters, which have no record, and return their number.

    A record is missing if the state directory was removed, or if the start was interrupted before
    the record was written.
    """
    stopped = 0
    for process in _clusters(kind):
        with contextlib.suppress(psutil.Error):
            layout = Layout(Path(), _state(process) / kind)
            # While a cluster in another state directory starts, it has a process but no record.
            if layout.state != Layout.of(kind).state and is_held(layout.lock):
                continue
            record = read_record(layout)
            if record is None or record.pid != process.pid:
                kill(process)
                stopped += 1
    if kind is Kind.REAL and not any(_clusters(kind)):
        _remove_groups(kind)
    return stopped


def running_elsewhere(kind: Kind) -> list[Path]:
    """Return the state directories of all running clusters of a kind on this host."""
    states = []
    for process in _clusters(kind):
        with contextlib.suppress(psutil.Error):
            states.append(_state(process))
    return states


def _clusters(kind: str) -> Iterator[psutil.Process]:
    """Yield the processes of all clusters of a kind, except those in containers."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            command = process.cmdline()
            program = ["-m", "devcluster.cluster_init", kind]
            is_cluster = any(command[at : at + 3] == program for at in range(len(command)))
            root = Path("/proc", str(process.pid), "root")
            if is_cluster and command[0] == "unshare" and root.samefile("/"):
                # process_iter returns cached objects, which may describe an earlier process with
                # the same ID.
                yield psutil.Process(process.pid)


def _state(process: psutil.Process) -> Path:
    return state_root(process.environ())


def _remove_groups(kind: Kind) -> None:
    directories = [
        directory / group_name(kind) for directory in cgroups.hierarchies().directories()
    ]
    present = [directory for directory in directories if directory.exists()]
    if not cgroups.processes(present):
        cgroups.remove(present)


@contextlib.contextmanager
def exclusive(path: Path, command: str) -> Iterator[None]:
    """Hold a lock while the block runs. The kernel releases the lock if the process dies.

    Raise DevclusterError if another command holds the lock. The message names that command.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = path.with_suffix(".holder")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise DevclusterError(f"{_describe(holder)}: wait until it exits, or stop it") from error
    try:
        began = datetime.now(UTC).isoformat(timespec="seconds")
        # On a full disk, `make down PURGE=1` must still be able to free space.
        with contextlib.suppress(OSError):
            holder.write_text(json.dumps({"pid": os.getpid(), "command": command, "began": began}))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether a command currently holds the lock."""
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def _describe(holder: Path) -> str:
    try:
        current = json.loads(holder.read_text())
        since, pid = current["began"], current["pid"]
        return f"`{current['command']}` has been running since {since} (process {pid})"
    except (OSError, ValueError, KeyError):
        return "another command is using this cluster"
