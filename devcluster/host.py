"""What this machine can do, asked before anything is started: packages, disk, addresses."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster import links
from devcluster.errors import DevclusterError
from devcluster.orphans import running_elsewhere
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind

GIB = 1 << 30
# program -> Debian package, for the real nodes and their images
PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "dockerd": "docker.io",
    "docker-registry": "docker-registry",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "skopeo": "skopeo",
    "pigz": "pigz",
    "mmdebstrap": "mmdebstrap",
    "gcc": "gcc",
    "strip": "binutils",
}
FILES = {
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/include/stdio.h": "libc6-dev",
}
# Says whether installing a package may start its services.
POLICY = Path("/usr/sbin/policy-rc.d")
# Below a socket's path lies its name; the kernel takes at most 107 bytes in all.
SOCKET_LIMIT = 107


@dataclass(frozen=True)
class Verdict:
    """Which kind of cluster is chosen, and why."""

    kind: Kind
    reason: str


def path_of_host() -> str:
    """PATH with the folders where Debian keeps system programs."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """Debian packages that real nodes need and this machine lacks."""
    path = path_of_host()
    absent = {package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)}
    absent |= {package for file, package in FILES.items() if not Path(file).exists()}
    return sorted(absent)


def can_install() -> bool:
    """True as root on Debian or a distribution like it."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def choose_kind(asked: str) -> Verdict:
    """The kind of cluster for `auto`, `real` or `simulated`. DevclusterError if it can not be."""
    obstacle = _obstacle_to_real_nodes()
    if asked == Kind.SIMULATED:
        return Verdict(Kind.SIMULATED, "asked for by NODES=simulated")
    if asked == Kind.REAL:
        if obstacle:
            raise DevclusterError(
                f"NODES=real is not possible here: {obstacle}. "
                "Write NODES=simulated for a cluster whose pods run nothing."
            )
        return Verdict(Kind.REAL, "asked for by NODES=real")
    if asked != "auto":
        raise DevclusterError(f"NODES is {asked!r}: write NODES=real, NODES=simulated or leave it")
    if obstacle:
        return Verdict(Kind.SIMULATED, f"real nodes are not possible here: {obstacle}")
    return Verdict(Kind.REAL, "this is Linux, as root, with what real nodes need")


def _obstacle_to_real_nodes() -> str:
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        return f"they need Linux on x86_64, and this is {os.uname().sysname} {os.uname().machine}"
    if os.geteuid() != 0:
        return "they need root"
    absent = missing_packages()
    if absent and not can_install():
        return f"these programs are missing, and there is no apt-get: {', '.join(absent)}"
    return ""


def install_packages(packages: list[str], log: Path) -> None:
    """Installs Debian packages. DevclusterError with the command to try by hand."""
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    log.parent.mkdir(parents=True, exist_ok=True)
    # Installing must not start Docker or containerd on the host: policy-rc.d says no (101).
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        with log.open("ab") as out:
            for step in (["apt-get", "update"], command):
                subprocess.run(
                    step,
                    env=environment,
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
    except subprocess.CalledProcessError as error:
        raise DevclusterError(
            f"packages could not be installed (see {log}); try: {' '.join(command)}"
        ) from error
    finally:
        if ours:
            POLICY.unlink()


def check(spec: ClusterSpec, layout: Layout) -> None:
    """Raises DevclusterError for what would make the start fail later."""
    # Most of what a first start needs is for the compiler, whose caches are deleted afterwards.
    first, later = (20, 3) if spec.kind is Kind.REAL else (10, 1)
    layout.cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(layout.cache).free
    needed = (later if (layout.cache / "tools").exists() else first) * GIB
    if free < needed:
        raise DevclusterError(
            f"{free / GIB:.1f} GiB are free where {layout.cache} is, and about "
            f"{needed / GIB:.0f} GiB are needed: make room, or set GPU_PLATFORM_CACHE to a folder "
            "on a larger disk"
        )
    if spec.kind is Kind.REAL:
        _check_real(spec, layout)


def _check_real(spec: ClusterSpec, layout: Layout) -> None:
    if len(str(layout.docker_socket).encode()) > SOCKET_LIMIT:
        raise DevclusterError(
            f"{layout.docker_socket} is longer than a socket's path may be ({SOCKET_LIMIT} bytes): "
            "set GPU_PLATFORM_STATE to a folder with a shorter name"
        )
    for overlaid in ("/var", "/etc", "/opt", "/run", "/dev"):
        if layout.state.is_relative_to(overlaid) or layout.cache.is_relative_to(overlaid):
            raise DevclusterError(
                f"the cluster's files can not lie below {overlaid}, which its nodes have of their "
                "own: set GPU_PLATFORM_CACHE to a folder elsewhere"
            )
    ip = shutil.which("ip", path=path_of_host()) or "ip"
    if clashes := links.clashing_routes(spec.network, ip):
        if others := running_elsewhere(spec.kind):
            ways = " or ".join(f"GPU_PLATFORM_STATE={state} make down" for state in others)
            raise DevclusterError(f"another embedded cluster runs on this machine; end it: {ways}")
        raise DevclusterError(
            f"the network {spec.network.block} is in use here ({', '.join(clashes)}), and the "
            "embedded cluster needs it: end what uses it first"
        )
