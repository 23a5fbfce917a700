"""Host checks before the cluster starts: packages, disk space, namespaces and addresses."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from devcluster import DevclusterError
from devcluster.launcher import namespaces, running_elsewhere
from devcluster.nodes import links
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind
from devcluster.toolchain import go_caches, missing
from devcluster.toolchain.pins import Extra, Group

GIB = 1 << 30
# Programs and files that real nodes and their images require, with the Debian packages that provide
# them.
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
FILES = {"/usr/lib/cni/bridge": "containernetworking-plugins", "/usr/include/stdio.h": "libc6-dev"}
# Script that decides whether the installation of a package may start the package's services.
POLICY = Path("/usr/sbin/policy-rc.d")
# Exit status 101 prevents an installation by this project from starting Docker or containerd on the
# host. A file left behind by a killed process does not affect other installations.
_POLICY_TEXT = '#!/bin/sh\n[ -z "$GPU_PLATFORM_PACKAGES" ] || exit 101\n'
# Time (s) to wait while another program, such as unattended-upgrades, updates apt's package lists
# or uses dpkg.
_LOCK_SECONDS = 600
_WAIT_FOR_DPKG = ("--option", f"DPkg::Lock::Timeout={_LOCK_SECONDS}")
LISTS_LOCK = Path("/var/lib/apt/lists/lock")
# Maximum length of a socket path in bytes.
SOCKET_LIMIT = 107
# In PATH and KUBECONFIG, paths are separated by colons. kubectl's --filename and kwokctl's --config
# are parsed as CSV, and kwokctl parses the paths of programs as URLs.
_UNSUPPORTED_CHARACTERS = frozenset(':,"#%?')


@dataclass(frozen=True)
class Choice:
    """The chosen kind of cluster and the reason for the choice."""

    kind: Kind
    reason: str


def system_path() -> str:
    """Return PATH with Debian's system program directories appended."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """Return the Debian packages that real nodes require but that are not installed."""
    path = system_path()
    absent = {package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)}
    absent |= {package for file, package in FILES.items() if not Path(file).exists()}
    return sorted(absent)


def can_install() -> bool:
    """Return whether this process can install packages: it must run as root and have apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def choose_kind(requested: str) -> Choice:
    """Choose the kind of cluster. `requested` is `auto`, `real` or `simulated`.

    Raise DevclusterError if `requested` is invalid, or if it is `real` and the host does not
    support real nodes.
    """
    obstacle = _obstacle_to_real_nodes()
    if requested == Kind.SIMULATED:
        return Choice(Kind.SIMULATED, "requested by NODES=simulated")
    if requested == Kind.REAL:
        if obstacle:
            raise DevclusterError(
                f"NODES=real: real nodes are not possible here: {obstacle}. "
                "Use NODES=simulated for a cluster whose pods run no processes."
            )
        return Choice(Kind.REAL, "requested by NODES=real")
    if requested != "auto":
        raise DevclusterError(
            f"NODES is {requested!r}: use NODES=real or NODES=simulated, or unset NODES"
        )
    if obstacle:
        return Choice(Kind.SIMULATED, f"real nodes are not possible here: {obstacle}")
    return Choice(Kind.REAL, "root on Linux, and the required packages are installed or available")


def _obstacle_to_real_nodes() -> str:
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        return (
            f"they require Linux on x86_64, but this is {os.uname().sysname} {os.uname().machine}"
        )
    if os.geteuid() != 0:
        return "they require root"
    absent = missing_packages()
    if absent and not can_install():
        return f"without apt-get, these packages cannot be installed: {', '.join(absent)}"
    if error := _namespaces_error(Kind.REAL):
        return (
            "this process is not permitted to create namespaces, for example because it runs in an "
            f"unprivileged container ({error})"
        )
    return ""


def _namespaces_error(kind: Kind) -> str:
    """Return the reason why the namespaces of a cluster cannot be created, or an empty string."""
    command = ["unshare", *namespaces(kind), "--fork", "--mount-proc", "--", "true"]
    try:
        done = subprocess.run(
            command, env={"PATH": system_path()}, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def install_packages(packages: list[str], log: Path) -> None:
    """Install Debian packages; wait at most 10 minutes for another installation to finish.

    Raise DevclusterError with the command to run manually if the installation fails.
    """
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    variables = {"DEBIAN_FRONTEND": "noninteractive", "GPU_PLATFORM_PACKAGES": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    created = not POLICY.exists() or POLICY.read_bytes() == _POLICY_TEXT.encode()
    if created:
        POLICY.write_text(_POLICY_TEXT)
        POLICY.chmod(0o755)
    try:
        with log.open("ab") as out:
            _await_lists()
            for step in (["apt-get", "update"], [command[0], *_WAIT_FOR_DPKG, *command[1:]]):
                subprocess.run(
                    step,
                    env=os.environ | variables,
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
    except subprocess.CalledProcessError as error:
        raise DevclusterError(
            f"the packages could not be installed (see {log}); try: {' '.join(command)}"
        ) from error
    finally:
        if created:
            POLICY.unlink()


@retry(
    retry=retry_if_exception_type(BlockingIOError),
    wait=wait_fixed(0.5),
    stop=stop_after_delay(_LOCK_SECONDS),
    retry_error_callback=lambda _: None,
)
def _await_lists() -> None:
    """Wait until no other program is updating apt's package lists.

    The DPkg::Lock::Timeout option does not apply to this lock. If another program still holds the
    lock after the time limit, apt reports an error.
    """
    if LISTS_LOCK.exists():
        with LISTS_LOCK.open("ab") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def check(spec: ClusterSpec, layout: Layout, extras: Collection[Extra] = ()) -> None:
    """Raise DevclusterError if the host has a problem that would make the start fail later."""
    for directory in (layout.cache, layout.state):
        if unsupported := sorted(_UNSUPPORTED_CHARACTERS.intersection(str(directory))):
            raise DevclusterError(
                f"{directory} contains {' '.join(unsupported)}: set GPU_PLATFORM_CACHE (or "
                "GPU_PLATFORM_STATE, if set) to a directory without the characters "
                f"{' '.join(sorted(_UNSUPPORTED_CHARACTERS))}"
            )
    layout.cache.mkdir(parents=True, exist_ok=True)
    _check_disk(spec, layout, extras)
    if spec.kind is Kind.REAL:
        _check_real(spec, layout)
    elif error := _namespaces_error(spec.kind):
        raise DevclusterError(
            f"the cluster's namespaces cannot be created ({error}): allow unprivileged user "
            "namespaces (Ubuntu: `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`), "
            "run the command as root, or run the container with `--privileged`"
        )


def _check_disk(spec: ClusterSpec, layout: Layout, extras: Collection[Extra]) -> None:
    """Raise DevclusterError if the cache directory has too little free disk space."""
    # Builds need most of the space for Go's caches, which are deleted afterwards.
    building, later = (15, 3) if spec.kind is Kind.REAL else (12, 1)
    group: Group = "real" if spec.kind is Kind.REAL else "simulated"
    builds = True
    if missing(group, layout.cache):
        needed = building * GIB
    elif missing(group, layout.cache, extras):
        needed = (later + 2) * GIB
    else:
        builds, needed = False, later * GIB
    free = shutil.disk_usage(layout.cache).free
    # An interrupted build reuses its caches when it resumes, so their size counts as free space.
    if free < needed and (not builds or free + _size(go_caches(layout.cache)) < needed):
        raise DevclusterError(
            f"{layout.cache} has {free / GIB:.1f} GiB of free disk space, but about "
            f"{needed / GIB:.0f} GiB are needed: free some space, or set GPU_PLATFORM_CACHE to a "
            "directory on a larger disk"
        )


def _size(directory: Path) -> int:
    return sum(
        (Path(parent) / name).lstat().st_blocks * 512
        for parent, _, names in os.walk(directory)
        for name in names
    )


def _overlay_error(directory: Path) -> str:
    """Return the reason why an overlay cannot be mounted, or an empty string.

    The usual cause is that the directory itself is on an overlay, as in containers, or on a network
    file system.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as part:
        upper, work, target = (Path(part, name) for name in ("upper", "work", "target"))
        for each in (upper, work, target):
            each.mkdir()
        options = f"lowerdir=/etc,upperdir={upper},workdir={work}"
        mount = ["mount", "-t", "overlay", "-o", options, "overlay", str(target)]
        command = ["unshare", "--mount", *mount]
        done = subprocess.run(
            command, env={"PATH": system_path()}, capture_output=True, text=True, errors="replace"
        )
    return done.stderr.partition("\n")[0] if done.returncode else ""


def _check_real(spec: ClusterSpec, layout: Layout) -> None:
    """Raise DevclusterError if the host's paths, file systems or routes rule out real nodes."""
    if len(str(layout.docker_socket).encode()) > SOCKET_LIMIT:
        raise DevclusterError(
            f"{layout.docker_socket} is too long for a socket path (at most {SOCKET_LIMIT} bytes): "
            "set GPU_PLATFORM_STATE to a directory with a shorter path"
        )
    for overlaid in ("/var", "/etc", "/opt", "/run", "/dev"):
        if layout.state.is_relative_to(overlaid) or layout.cache.is_relative_to(overlaid):
            raise DevclusterError(
                f"the cluster's files cannot be in {overlaid}, where the nodes mount their "
                "own files: set GPU_PLATFORM_CACHE (or GPU_PLATFORM_STATE, if set) to another "
                "directory"
            )
    for directory in (layout.cache, layout.state):
        if error := _overlay_error(directory):
            raise DevclusterError(
                f"the nodes cannot mount overlays whose files are in {directory} ({error}): set "
                "GPU_PLATFORM_CACHE (or GPU_PLATFORM_STATE, if set) to a directory on a local disk "
                "with ext4 or XFS, and without backslashes in its path"
            )
    ip = shutil.which("ip", path=system_path()) or "ip"
    if clashes := links.clashing_routes(spec.network, ip):
        if others := running_elsewhere(spec.kind):
            commands = " or ".join(f"GPU_PLATFORM_STATE={state} make down" for state in others)
            raise DevclusterError(
                f"another embedded cluster is running on this host; stop it with {commands}"
            )
        raise DevclusterError(
            f"the network {spec.network.block}, which the embedded cluster requires, is in use "
            f"({', '.join(clashes)}): stop the program that uses it"
        )
