"""Previews without a cluster, without secrets and without the stack's state.

What a pull request from a fork gets: the base is rendered into a state of its own, and the head is
previewed against it, so the engine itself says what is created, changed and replaced. Secrets have
stand-ins, and images that would be built are named by the hash of their sources, so that a change
of the sources is a new run here as it is in the cluster.
"""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from gitops.engine import Stack, common, run_or_fail
from gitops.errors import GitopsError
from gitops.secrets import document, secure_paths
from infra.settings.images import BuildSettings, identity
from infra.settings.problems import PROJECT

STAND_IN = "stand-in-for-a-secret"
_NO_CLUSTER = "/nonexistent/kubeconfig"
_STACK_KEYS = ("config",)
"""All that is taken of a stack's file; salts and keys belong to its real state."""


@contextmanager
def workspace(stack: Stack, base: str | None) -> Iterator[Stack]:
    """A stack that is rendered, with the state that `base` (a Git revision) would have.

    What counts is the commit at which the present branch left the base.

    Without a base, or where the base does not have the stack, everything is new. Raises
    GitopsError where the revision or the configuration cannot be used.
    """
    with TemporaryDirectory(prefix="gpu-platform-rendered-") as name:
        folder = Path(name)
        (folder / "state").mkdir()
        shutil.copy(stack.project / "Pulumi.yaml", folder)
        rendered = replace(
            stack,
            configuration=folder / f"Pulumi.{stack.name}.yaml",
            variables={**stack.variables, **_variables(folder)},
        )
        run_or_fail(rendered, "stack", "init", stack.name, folder=folder)
        if base is not None:
            project = _checkout(stack.project, base, folder / "base")
            if (project / f"Pulumi.{stack.name}.yaml").exists():
                before = replace(rendered, project=project)
                _configure(before, project / f"Pulumi.{stack.name}.yaml", folder)
                run_or_fail(before, "up", "--yes", "--skip-preview", *common(before))
        _configure(rendered, stack.file, folder)
        yield rendered


def _variables(folder: Path) -> dict[str, str]:
    return {
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
        # The stack lives as long as the preview, and holds stand-ins only.
        "PULUMI_CONFIG_PASSPHRASE": STAND_IN,
        "PULUMI_CONFIG_PASSPHRASE_FILE": "",
        "PULUMI_ACCESS_TOKEN": "",
        "KUBECONFIG": _NO_CLUSTER,
    }


def _checkout(project: Path, revision: str, folder: Path) -> Path:
    """The project as it was at a revision, without touching the checkout."""
    if revision.startswith("-"):
        raise GitopsError(f"the base {revision!r} is no Git revision")
    archive = _git(project, "archive", "--format=tar", f"{_branching(project, revision)}^{{tree}}")
    if archive.returncode != 0:
        raise GitopsError(
            f"the base {revision!r} is no revision of {project}: {archive.stderr.decode().strip()} "
            "(a shallow clone lacks it: fetch it, or clone with its history)"
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    environment = project / ".venv"
    if environment.exists():
        (folder / ".venv").symlink_to(environment.resolve())
    return folder


def _branching(project: Path, revision: str) -> str:
    """Where the present commit left the revision: what came after it there is nobody's change."""
    found = _git(project, "merge-base", revision, "HEAD")
    return found.stdout.decode().strip() if found.returncode == 0 else revision


def _git(project: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=project, capture_output=True, check=False)


def _configure(stack: Stack, source: Path, folder: Path) -> None:
    """Writes the configuration of a rendered stack from that of the real one."""
    config = document(source).get("config", {})
    secrets = list(secure_paths(config))
    config[f"{PROJECT}:cluster"] = _rendering(config.get(f"{PROJECT}:cluster"), folder)
    _name_images(config.get(f"{PROJECT}:images"), stack.project)
    target = stack.file
    # The salt of the stand-ins' encryption is in the file that `stack init` wrote.
    kept = {k: v for k, v in document(target).items() if k not in _STACK_KEYS}
    for path in secrets:
        _remove(config, path)
    target.write_text(yaml.safe_dump({**kept, "config": config}, sort_keys=False))
    for path in secrets:
        run_or_fail(
            stack, "config", "set", "--secret", "--path", _spelled(path), STAND_IN, *common(stack)
        )


def _rendering(cluster: Any, folder: Path) -> dict[str, Any]:
    kept = {k: v for k, v in cluster.items() if k == "domain"} if isinstance(cluster, dict) else {}
    return {**kept, "render_to": str(folder / "manifests")}


def _name_images(images: Any, project: Path) -> None:
    """Names images that would be built by the hash of their sources, in place."""
    if not isinstance(images, dict) or not isinstance(images.get("workloads"), dict):
        return
    workloads = images["workloads"]
    for key, image in workloads.items():
        if isinstance(image, dict) and isinstance(image.get("build"), dict):
            digest = _identity(image["build"], project)
            if digest is not None:
                host = images.get("registry", "registry.invalid")
                path = images.get("repository", PROJECT)
                workloads[key] = {"reference": f"{host}/{path}/{key}@sha256:{digest}"}


def _identity(build: dict[str, Any], project: Path) -> str | None:
    """The hash, or None where the section is wrong, which the settings will say."""
    try:
        return identity(BuildSettings.model_validate(build), project)
    except (ValueError, OSError):
        return None


def _remove(config: Any, path: tuple[str | int, ...]) -> None:
    *parents, last = path
    for step in parents:
        config = config[step]
    # A list keeps its length, since the stand-in goes to the same place.
    if isinstance(config, list):
        config[int(last)] = None
    else:
        del config[last]


def _spelled(path: tuple[str | int, ...]) -> str:
    """A path as `pulumi config set --path` takes it: `project:key["name"][0]`."""
    key, *steps = path
    text = str(key)
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f'["{step}"]'
    return text
