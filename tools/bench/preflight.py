"""Detection of slow nodes before the first step: `make bench-preflight` (Linux, root, cgroup v1).

Four processes, each in a separate network namespace, simulate the pods of a gang on three nodes;
two of the pods are on node a. A node is a network namespace with a bridge, connected to a switch by
a veth pair. The benchmark injects one fault at a time: tc limits the link of one node to 100 Mbit/s
in both directions, or a CPU quota limits the processes of one node to a twentieth of a core. A
start without a fault must not report a slow node.

The processes import PyTorch once. Every start creates a new process group, and the measured
duration includes the rendezvous. The gang is not isolated from other programs on the host.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from tools.bench.outcome import Goal, conclude, print_line, spread

NODES: Final = ("a", "a", "b", "c")
"""Node of each rank."""

FAULT_RATE: Final = "100mbit"
FAULT_CORES: Final = 0.05
SHARES: Final = 4096
"""CPU shares of each pod, as if it requested four cores."""

CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
PREFIX: Final = f"preflight-{os.getpid()}"
NETWORK: Final = "10.99.0"
PERIOD: Final = 100_000
"""Period (µs) of the CPU quota, equal to Kubernetes' default."""


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--starts", type=int, default=200, help="number of starts without a fault; default: 200"
    )
    parser.add_argument(
        "--faults", type=int, default=3, help="number of starts per fault and node; default: 3"
    )
    options = parser.parse_args()
    if os.geteuid() or not CGROUPS.is_dir():
        sys.exit("make bench-preflight requires cgroup v1, and root for network namespaces")
    with tempfile.TemporaryDirectory() as directory, network(), cgroups(), gang(directory) as start:
        start()
        undisturbed = [start() for _ in count_starts("undisturbed", options.starts)]
        faults: dict[str, list[dict[str, Any]]] = {}
        for (kind, fault), node in itertools.product(FAULTS.items(), sorted({*NODES})):
            with fault(node):
                name = f"{kind} of node {node}"
                faults[name] = [start() for _ in count_starts(name, options.faults)]
    alarms = [each for each in undisturbed if each["found"]]
    missed = [
        each
        for name, found in faults.items()
        for each in found
        if {line.split(":")[0] for line in each["found"].splitlines()} != {f"slow node {name[-1]}"}
    ]
    seconds = [each["seconds"] for found in faults.values() for each in found]
    for name, found in {"undisturbed": undisturbed, **faults}.items():
        took = spread([each["seconds"] for each in found])
        print_line(
            f"{name}: {took['median']:.1f} s ({took['minimum']:.1f} to {took['maximum']:.1f})"
        )
    for each in [*alarms, *missed]:
        print_line(f"unexpected result: {each['found'] or 'no slow node'}")
    goals = [
        Goal("maximum time (s) until a fault is found", max(seconds), 10, at_most=True),
        Goal("faults that were missed or misattributed", len(missed), 0, at_most=True),
        Goal(f"false alarms in {len(undisturbed)} starts", len(alarms), 0, at_most=True),
    ]
    conclude("preflight", {"undisturbed": undisturbed, "faults": faults}, goals)


def count_starts(name: str, count: int) -> Iterator[int]:
    """Yield the numbers below `count` and print progress."""
    for number in range(count):
        if number % 20 == 0:
            print_line(f"  {name}: start {number + 1} of {count}")
        yield number


def ip(*arguments: str, namespace: str | None = None) -> None:
    """Run `ip`, optionally in a network namespace of the benchmark."""
    within = ["-n", f"{PREFIX}-{namespace}"] if namespace else []
    subprocess.run(["ip", *within, *arguments], check=True)


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Create and connect the switch, the nodes and the pods, and delete them afterwards."""
    pods = {f"pod{rank}": f"node-{node}" for rank, node in enumerate(NODES)}
    links = {**dict.fromkeys(sorted({*pods.values()}), "switch"), **pods}
    with contextlib.ExitStack() as stack:
        for name in ("switch", *links):
            ip("netns", "add", f"{PREFIX}-{name}")
            stack.callback(ip, "netns", "delete", f"{PREFIX}-{name}")
            ip("link", "set", "lo", "up", namespace=name)
            if name not in pods:
                ip("link", "add", "bridge", "type", "bridge", namespace=name)
                ip("link", "set", "bridge", "up", namespace=name)
        for name, other in links.items():
            peer = ("peer", "name", name, "netns", f"{PREFIX}-{other}")
            ip("link", "add", "eth0", "type", "veth", *peer, namespace=name)
            ip("link", "set", name, "master", "bridge", "up", namespace=other)
            ip("link", "set", "eth0", "up", namespace=name)
            if name not in pods:
                ip("link", "set", "eth0", "master", "bridge", namespace=name)
        for rank, name in enumerate(pods):
            ip("address", "add", f"{NETWORK}.{rank + 1}/24", "dev", "eth0", namespace=name)
        yield


@contextlib.contextmanager
def cgroups() -> Iterator[None]:
    """Create a cgroup for the processes of each node."""
    with contextlib.ExitStack() as stack:
        for node in sorted({*NODES}):
            cgroup(node).mkdir()
            stack.callback(cgroup(node).rmdir)
            (cgroup(node) / "cpu.shares").write_text(str(SHARES * NODES.count(node)))
        yield


def cgroup(node: str) -> Path:
    """Return the cgroup of a node."""
    return CGROUPS / f"{PREFIX}-{node}"


@contextlib.contextmanager
def gang(directory: str) -> Iterator[Any]:
    """Start the processes, and yield a function that forms a gang and returns its result."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(process(rank, directory)) for rank in range(len(NODES))]
        ports = itertools.count(20_000)

        def start() -> dict[str, Any]:
            port = next(ports)
            for each in processes:
                stream(each.stdin).write(f"{port}\n")
                stream(each.stdin).flush()
            results = [result(each) for each in processes]
            [found] = {each["found"] for each in results}
            return {**results[0], "found": found, "seconds": max(e["seconds"] for e in results)}

        yield start


@contextlib.contextmanager
def process(rank: int, directory: str) -> Iterator[subprocess.Popen[str]]:
    """Start a rank in the network namespace of its pod and the cgroup of its node.

    The process exits when its input ends.
    """
    program = [sys.executable, "-m", "tools.bench.preflight_gang"]
    arguments = [str(rank), str(len(NODES)), f"{NETWORK}.1", directory]
    variables = {"NODE_NAME": NODES[rank], "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        ["ip", "netns", "exec", f"{PREFIX}-pod{rank}", *program, *arguments],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        (cgroup(NODES[rank]) / "cgroup.procs").write_text(str(started.pid))
        yield started


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return a process's report about the start of a gang. Rank 0 also reports preflight events."""
    events: list[Any] = []
    for line in stream(process.stdout):
        content = json.loads(line)
        if "event" not in content:
            return {**content, "events": events}
        events.append(content)
    sys.exit("a process of the gang has exited")


def stream(pipe: IO[str] | None) -> IO[str]:
    """Return a standard stream of a process. Raise TypeError if the process has no such stream."""
    if pipe is None:
        raise TypeError("the process was started without this stream")
    return pipe


@contextlib.contextmanager
def slow_link(node: str) -> Iterator[None]:
    """Limit the link of a node in both directions."""
    ends = ((f"{PREFIX}-node-{node}", "eth0"), (f"{PREFIX}-switch", f"node-{node}"))
    for namespace, device in ends:
        limit = ["tbf", "rate", FAULT_RATE, "burst", "128kb", "latency", "100ms"]
        command = ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *limit]
        subprocess.run(command, check=True)
    try:
        yield
    finally:
        for namespace, device in ends:
            command = ["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"]
            subprocess.run(command, check=True)


@contextlib.contextmanager
def slow_cpu(node: str) -> Iterator[None]:
    """Limit the processes of a node to a twentieth of a core."""
    quota = cgroup(node) / "cpu.cfs_quota_us"
    quota.write_text(str(int(FAULT_CORES * PERIOD)))
    try:
        yield
    finally:
        quota.write_text("-1")


FAULTS: Final = {"slow link": slow_link, "slow CPU": slow_cpu}


if __name__ == "__main__":
    main()
