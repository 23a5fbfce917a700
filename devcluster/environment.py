"""The environment in which pulumi, kubectl and docker work on the embedded cluster.

Nothing of the user's own is used: not ~/.kube, not ~/.pulumi, not their Docker.
"""

import os
import shlex
import sys
from pathlib import Path

from devcluster.paths import Layout
from devcluster.spec import Kind, Network
from devcluster.toolchain import Toolchain

# Publicly known on purpose: the dev stack holds no secret (Pulumi.dev.yaml says so).
PASSPHRASE = "devcluster"  # noqa: S105


def variables(layout: Layout, toolchain: Toolchain, kind: Kind) -> dict[str, str]:
    """The variables to set; everything else of the environment stays."""
    layout.pulumi_backend.mkdir(parents=True, exist_ok=True)
    own = layout.state / "bin"
    folders = [str(toolchain.bin), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    found = {
        "KUBECONFIG": str(layout.kubeconfig),
        "PULUMI_HOME": str(toolchain.pulumi_home),
        # Without notes beside its files: a kill while one is written leaves it empty, and the next
        # command then ends with "failed to load checkpoint: EOF", though the state is whole.
        "PULUMI_BACKEND_URL": f"file://{layout.pulumi_backend}?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        # What a killed update has made is taken over by the next one; nobody else manages it here.
        "PULUMI_K8S_ENABLE_PATCH_FORCE": "true",
        **past_proxies(),
    }
    if kind is Kind.REAL:
        _prefer_debian_docker(own)
        folders.insert(0, str(own))
        found["DOCKER_HOST"] = f"unix://{layout.docker_socket}"
        found["DOCKER_BUILDKIT"] = "1"
    return {**found, "PATH": ":".join(folders)}


def past_proxies() -> dict[str, str]:
    """Where the user has a proxy: variables that make programs reach the cluster without it."""
    names = {name.upper() for name, value in os.environ.items() if value}
    if not names & {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}:
        return {}
    said = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    parts = [part for part in said.split(",") if part]
    block = Network().block
    value = ",".join(parts if block in parts else [*parts, block])
    return {"NO_PROXY": value, "no_proxy": value}


def _prefer_debian_docker(folder: Path) -> None:
    # A docker of another origin first on PATH may lack BuildKit; Debian's has it built in.
    link, debian = folder / "docker", Path("/usr/bin/docker")
    folder.mkdir(parents=True, exist_ok=True)
    if debian.exists() and not link.is_symlink():
        link.symlink_to(debian)


def exports(found: dict[str, str]) -> str:
    """The variables as shell commands, for `eval "$(make env)"`."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.items())
