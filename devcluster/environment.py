"""Environment variables that make pulumi, kubectl and docker use the embedded cluster.

With them, these programs ignore ~/.kube, ~/.pulumi and, with real nodes, the user's Docker.
"""

import os
import pwd
import shlex
import sys
from pathlib import Path
from urllib.parse import quote

from devcluster.paths import Layout
from devcluster.spec import Kind, Network
from devcluster.toolchain import Toolchain

# Public on purpose: the dev stack contains no secrets (see Pulumi.dev.yaml).
PASSPHRASE = "devcluster"  # noqa: S105
DOCKER_DEFAULTS = {
    "DOCKER_TLS": "",
    "DOCKER_TLS_VERIFY": "",
    "DOCKER_CERT_PATH": "",
    "DOCKER_CONTENT_TRUST": "",
    "DOCKER_API_VERSION": "",
}
"""Variables that replace settings for the user's Docker engine.

The cluster's Docker engine does not use TLS, its images are not signed, and its API version may be
older.
"""
ADOPTION_VARIABLES = {"PULUMI_K8S_ENABLE_PATCH_FORCE": "true"}
"""Variable that lets an update adopt existing objects, such as those that a killed update created.

`make up` sets it only for the platform's stack. If it were exported to the shell, other stacks
could adopt the platform's objects.
"""


def variables(layout: Layout, toolchain: Toolchain, kind: Kind) -> dict[str, str]:
    """Return the variables to set. All other variables remain unchanged."""
    layout.pulumi_backend.mkdir(parents=True, exist_ok=True)
    docker_directory = layout.state / "bin"
    directories = [str(toolchain.bin), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    result = {
        "KUBECONFIG": str(layout.kubeconfig),
        "PULUMI_HOME": str(toolchain.pulumi_home),
        # Skip metadata files. If Pulumi is killed while it writes one, the file remains empty, and
        # the next command fails with "failed to load checkpoint: EOF", although the state is
        # complete.
        "PULUMI_BACKEND_URL": f"file://{quote(str(layout.pulumi_backend))}?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        **_user(),
        **proxy_exclusions(),
    }
    if kind is Kind.REAL:
        _prefer_debian_docker(docker_directory)
        directories.insert(0, str(docker_directory))
        result["DOCKER_HOST"] = f"unix://{layout.docker_socket}"
        result |= DOCKER_DEFAULTS
        result["DOCKER_BUILDKIT"] = "1"
    return {**result, "PATH": ":".join(directories)}


def _user() -> dict[str, str]:
    """Return the USER variable, which Pulumi requires but which is often unset in containers."""
    try:
        return {"USER": os.environ.get("USER") or pwd.getpwuid(os.geteuid()).pw_name}
    except KeyError:
        return {"USER": str(os.geteuid())}


def proxy_exclusions() -> dict[str, str]:
    """Return variables that exclude the cluster from the user's proxy, if one is set.

    The loopback address is excluded as well. Otherwise, gRPC would connect to Pulumi's engine
    through the proxy.
    """
    names = {name.upper() for name, value in os.environ.items() if value}
    if not names & {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY"}:
        return {}
    value = _with_cluster(os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "")
    result = {"NO_PROXY": value, "no_proxy": value}
    # If this variable is set, gRPC ignores no_proxy.
    if excluded := os.environ.get("no_grpc_proxy"):  # noqa: SIM112
        result["no_grpc_proxy"] = _with_cluster(excluded)
    return result


def _with_cluster(excluded: str) -> str:
    addresses = [part for part in excluded.split(",") if part] + ["127.0.0.1", Network().block]
    return ",".join(dict.fromkeys(addresses))


def _prefer_debian_docker(directory: Path) -> None:
    # Debian's docker includes BuildKit, which another docker on PATH may lack.
    link, debian = directory / "docker", Path("/usr/bin/docker")
    directory.mkdir(parents=True, exist_ok=True)
    if debian.exists() and not link.is_symlink():
        link.symlink_to(debian)


def exports(variables: dict[str, str]) -> str:
    """Return the variables as shell commands, for `eval "$(make env)"`."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
