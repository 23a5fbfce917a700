"""File system of a real node in its mount namespace.

A node reads the host's files. Its writes to /var, /etc and /opt go to overlay directories in the
cluster's state. The mounts are not visible outside the namespace and disappear with it.
"""

import subprocess
from pathlib import Path

from devcluster.nodes import cgroups
from devcluster.paths import Layout

OVERLAID = ("var", "etc", "opt")
# The kubelet sets these sysctls, which are not namespaced. Files are mounted over them, so that the
# host's values do not change.
SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def prepare(layout: Layout, node: str, hierarchies: cgroups.Hierarchies) -> None:
    """Set up all mounts of a node. Call this once, as PID 1 of the node's namespaces."""
    home, store = layout.node(node), layout.node_store(node)
    _mount("--make-rshared", "/")
    _mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    for name in ("netns", "lock"):
        Path("/run", name).mkdir()
    for name in OVERLAID:
        _overlay(name, home)
    _bind(home / "kubelet", Path("/var/lib/kubelet"))
    _bind(home / "cni", Path("/var/lib/cni"))
    _bind(store / "containerd", Path("/var/lib/containerd"))
    _bind(store / "docker", Path("/var/lib/docker"))
    _bind(layout.volumes, Path("/var/lib/shared-volumes"))
    for directory in ("/etc/cni/net.d", "/etc/containerd/certs.d", "/var/log/pods"):
        Path(directory).mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "size=1g", "shm", "/dev/shm")  # noqa: S108
    _mount_sysctls()
    _mount_sys(hierarchies)


def _overlay(name: str, home: Path) -> None:
    upper, work = home / name / "upper", home / name / "work"
    for directory in (upper, work):
        directory.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
    _mount("-t", "overlay", "-o", options, f"overlay-{name}", f"/{name}")


def _bind(source: Path, target: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    _mount("--bind", str(source), str(target))
    # Leave the peer group of /; otherwise, volumes that the kubelet mounts here would appear twice.
    _mount("--make-private", str(target))
    _mount("--make-shared", str(target))


def _mount_sysctls() -> None:
    for key, value in SYSCTLS.items():
        file = Path("/run", "sysctl." + key.replace("/", "."))
        file.write_text(value + "\n")
        _mount("--bind", str(file), f"/proc/sys/{key}")


def _mount_sys(hierarchies: cgroups.Hierarchies) -> None:
    # sysfs and cgroup mounts show the namespaces of the process that mounted them.
    _mount("-t", "sysfs", "-o", "nosuid,nodev,noexec", "sysfs", "/sys")
    if hierarchies.unified:
        _mount("-t", "cgroup2", "cgroup2", str(cgroups.ROOT))
        return
    _mount("-t", "tmpfs", "-o", "mode=755", "cgroup", str(cgroups.ROOT))
    for controllers, directory in zip(
        hierarchies.controllers, hierarchies.directories(), strict=True
    ):
        directory.mkdir()
        _mount("-t", "cgroup", "-o", controllers, "cgroup", str(directory))
        for alias in directory.name.split(",") if "," in directory.name else []:
            (cgroups.ROOT / alias).symlink_to(directory.name)
