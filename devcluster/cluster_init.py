"""PID 1 of the cluster. All other processes are its descendants and are killed with it.

With real nodes, PID 1 creates the network switch and runs a supervised process per node, in
separate namespaces. With simulated nodes, it runs the control plane and Volcano on the host's
loopback interface.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from devcluster.nodes import cgroups, links
from devcluster.paths import CHECKOUT, Layout
from devcluster.spec import ClusterSpec, Kind, RealNode, cluster_spec
from devcluster.toolchain.manifests import VolcanoFiles
from simulation.control_plane import ControlPlane
from simulation.supervisor import API_READY, EventLog, Service, Supervisor
from simulation.volcano import Webhooks, apply_definitions, volcano_services


def node_service(node: RealNode, groups: list[Path], arguments: list[str]) -> Service:
    """Return the service that runs a real node. Restarting the service reboots the node."""
    switch_namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.set_inheritable(switch_namespace, True)
    unshare = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]
    flags = ["--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"]
    program = [
        sys.executable,
        "-m",
        "devcluster.nodes.init",
        node.name,
        *arguments,
        str(switch_namespace),
    ]
    return Service(
        node.name,
        [*unshare, *flags, *program],
        {"PYTHONPATH": str(CHECKOUT)},
        pass_fds=(switch_namespace,),
        before=partial(cgroups.enter, groups),
    )


def run_real(
    spec: ClusterSpec, layout: Layout, node_arguments: list[str], host_namespace: int
) -> None:
    """Create the switch and run the nodes."""
    links.create_switch(spec, host_namespace)
    os.close(host_namespace)
    supervisor = Supervisor(layout.logs)
    hierarchies = cgroups.hierarchies()
    group = group_name(spec.kind)
    if hierarchies.unified:
        cgroups.delegate(cgroups.ROOT / group)
    for node in spec.real_nodes:
        groups = cgroups.create(f"{group}/{node.name}", hierarchies)
        supervisor.start(node_service(node, groups, node_arguments))
    supervisor.run_forever()


def run_simulated(
    spec: ClusterSpec,
    layout: Layout,
    binaries: Path,
    files: VolcanoFiles,
    api_port: int,
    volcano: str,
) -> None:
    """Run the control plane and Volcano's processes."""
    events = EventLog(layout.events)
    supervisor = Supervisor(layout.logs)
    control_plane = ControlPlane(layout.control_plane_settings(spec, binaries, api_port))
    try:
        is_restart = control_plane.exists
        control_plane.start()
        server = f"https://127.0.0.1:{api_port}"
        control_plane.write_kubeconfig(layout.kubeconfig, server)
        events.add("control-plane", API_READY)
        apply_definitions(layout.kubeconfig, binaries, files.definitions, is_restart=is_restart)
        webhooks = Webhooks.of(files.webhooks, layout.pki)
        webhooks.apply(layout.kubeconfig, binaries)
        supervisor.start(webhooks.service(layout.kubeconfig, binaries))
        webhooks.wait()
        for service in volcano_services(
            layout.kubeconfig,
            binaries,
            layout.scheduler_configuration,
            layout.state / "klog",
            volcano,
        ):
            supervisor.start(service)
        events.add("control-plane", "Volcano is running", ready=True)
    except (OSError, subprocess.CalledProcessError) as error:
        events.add("control-plane", "failed", error=str(error))
        raise
    supervisor.on_orphan = control_plane.on_exit
    supervisor.run_forever()


def group_name(kind: Kind) -> str:
    """Return the name of the cluster's control group, which is the same in every hierarchy."""
    return f"gpu-platform-{kind}"


def main(kind: str, binaries: str, files: str, network_or_port: str, volcano: str) -> None:
    """Run a cluster.

    Args:
        kind: Kind of the cluster.
        binaries: Directory of the tools.
        files: Directory of the chart repository (real) or of Volcano's files (simulated).
        network_or_port: File descriptor of the host's network namespace (real), or port of the
            API server (simulated).
        volcano: Version of Volcano's scheduler (simulated); empty for the default.
    """
    spec = cluster_spec(Kind(kind))
    layout = Layout.of(spec.kind)
    if spec.kind is Kind.REAL:
        run_real(spec, layout, [binaries, files], int(network_or_port))
    else:
        volcano_files = VolcanoFiles(Path(files))
        run_simulated(spec, layout, Path(binaries), volcano_files, int(network_or_port), volcano)


if __name__ == "__main__":
    main(*sys.argv[1:])
