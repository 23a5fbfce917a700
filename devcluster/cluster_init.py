"""Process 1 of the whole cluster: everything that the cluster runs is below it, and ends with it.

Of the real kind it holds the network switch and one supervised process a node, each with namespaces
of its own. Of the simulated kind it holds the control plane and Volcano on the host's loopback.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from devcluster import cgroups, links
from devcluster.events import EventLog
from devcluster.kwok_control_plane import ControlPlane
from devcluster.paths import CHECKOUT, Layout
from devcluster.spec import ClusterSpec, Kind, RealNode, cluster_spec
from devcluster.supervisor import Service, Supervisor
from devcluster.volcano_processes import apply_definitions, volcano_services


def node_service(node: RealNode, groups: list[Path], arguments: list[str]) -> Service:
    """The process of a real node. Restarting it is the node's reboot."""
    switch = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.set_inheritable(switch, True)
    unshare = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]
    flags = ["--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"]
    program = [sys.executable, "-m", "devcluster.node_init", node.name, *arguments, str(switch)]
    return Service(
        node.name,
        [*unshare, *flags, *program],
        {"PYTHONPATH": str(CHECKOUT)},
        pass_fds=(switch,),
        before=partial(cgroups.enter, groups),
    )


def run_real(spec: ClusterSpec, layout: Layout, arguments: list[str], host_namespace: int) -> None:
    """Makes the switch and starts the nodes."""
    links.make_switch(spec, host_namespace)
    os.close(host_namespace)
    supervisor = Supervisor(layout.logs)
    machine = cgroups.hierarchies()
    group = group_name(spec.kind)
    if machine.unified:
        cgroups.delegate(cgroups.ROOT / group)
    for node in spec.real_nodes:
        groups = cgroups.create(f"{group}/{node.name}", machine)
        supervisor.start(node_service(node, groups, arguments))
    supervisor.run_forever()


def run_simulated(
    spec: ClusterSpec, layout: Layout, binaries: Path, definitions: Path, api_port: int
) -> None:
    """Starts the control plane and Volcano's processes beside it."""
    events = EventLog(layout.events)
    supervisor = Supervisor(layout.logs)
    control_plane = ControlPlane(spec, layout, binaries, api_port)
    try:
        control_plane.start()
        server = f"https://127.0.0.1:{api_port}"
        control_plane.write_kubeconfig(layout.kubeconfig, server)
        events.add("control-plane", "API server answers")
        apply_definitions(layout, binaries, definitions)
        for service in volcano_services(layout, binaries):
            supervisor.start(service)
        events.add("control-plane", "Volcano runs", ready=True)
    except (OSError, subprocess.CalledProcessError) as error:
        events.add("control-plane", "failed", error=str(error))
        raise
    supervisor.on_orphan = control_plane.ended
    supervisor.run_forever()


def group_name(kind: Kind) -> str:
    """The cluster's control group, below every hierarchy's root."""
    return f"gpu-platform-{kind}"


def main(kind: str, binaries: str, files: str, last: str) -> None:
    """Runs the cluster of a kind.

    Of the real kind `files` is the chart repository and `last` the host's network namespace (an
    open descriptor); of the simulated kind Volcano's definitions and the API server's port.
    """
    spec = cluster_spec(Kind(kind))
    layout = Layout.of(spec.kind)
    if spec.kind is Kind.REAL:
        run_real(spec, layout, [binaries, files], int(last))
    else:
        run_simulated(spec, layout, Path(binaries), Path(files), int(last))


if __name__ == "__main__":
    main(*sys.argv[1:])
