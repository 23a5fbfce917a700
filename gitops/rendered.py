"""Previews without a cluster, secrets or the stack's state, for pull requests from forks.

The base revision is rendered into a temporary state. The current version is previewed against this
state, so the engine itself determines which resources are created, changed and replaced.
Placeholders replace the secrets. Images that would be built are identified by the hash of their
sources. As in a real stack, the hashes of run images exclude this project's directories, so changes
to this project do not start new runs.
"""

import json
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from gitops.engine import Stack, run_or_fail, stack_options
from gitops.errors import GitopsError
from gitops.secrets import secure_paths
from gitops.stack_file import document
from infra.settings.images import BuildSettings, identity
from infra.settings.problems import PROJECT
from infra.settings.training.job import TrainingJobSettings

PLACEHOLDER = "placeholder-of-a-secret"
_NO_CLUSTER = "/nonexistent/kubeconfig"
_BROKEN_BASE = (
    "The base `{base}` cannot be rendered, so there is nothing to compare with: all resources are "
    "listed as new."
)
_STACK_KEYS = ("config",)
"""Keys that are copied from a stack's file. All other keys, such as the encryption salt, apply only
to the real stack."""


@contextmanager
def workspace(stack: Stack, base: str | None) -> Iterator[Stack]:
    """Yield a stack for a rendered preview. Its state is rendered from a Git revision.

    The revision is the merge base of the current branch and `base`. Without a base, or if the base
    does not contain the stack, all resources are new.

    Raises:
        GitopsError: If the revision or the configuration is invalid.
    """
    with TemporaryDirectory(prefix="gpu-platform-rendered-") as name:
        directory = Path(name)
        (directory / "state").mkdir()
        shutil.copy(stack.project / "Pulumi.yaml", directory)
        rendered = replace(
            stack,
            configuration=directory / f"Pulumi.{stack.name}.yaml",
            variables={**stack.variables, **_variables(directory)},
        )
        run_or_fail(rendered, "stack", "init", stack.name, directory=directory)
        if base is not None:
            project = _checkout(stack.project, base, directory / "base")
            if (project / f"Pulumi.{stack.name}.yaml").exists():
                before = replace(rendered, project=project)
                try:
                    _configure(before, project / f"Pulumi.{stack.name}.yaml", directory)
                    run_or_fail(before, "up", "--yes", "--skip-preview", *stack_options(before))
                except GitopsError:
                    # The change may fix the error in the base, so preview the change anyway.
                    rendered = replace(rendered, notices=(_BROKEN_BASE.format(base=base),))
                    _reset_state(rendered, directory)
        _configure(rendered, stack.file, directory)
        yield rendered


def _reset_state(stack: Stack, directory: Path) -> None:
    """Replace the state of a failed update with an empty state."""
    shutil.rmtree(directory / "state")
    (directory / "state").mkdir()
    stack.file.unlink(missing_ok=True)
    run_or_fail(stack, "stack", "init", stack.name, directory=directory)


def _variables(directory: Path) -> dict[str, str]:
    return {
        "PULUMI_BACKEND_URL": f"file://{quote(str(directory / 'state'))}",
        # The stack exists only during the preview, and contains only placeholders.
        "PULUMI_CONFIG_PASSPHRASE": PLACEHOLDER,
        "PULUMI_CONFIG_PASSPHRASE_FILE": "",
        "PULUMI_ACCESS_TOKEN": "",
        "KUBECONFIG": _NO_CLUSTER,
    }


def _checkout(project: Path, revision: str, directory: Path) -> Path:
    """Extract the project at the merge base with a revision, and return its directory."""
    if revision.startswith("-"):
        raise GitopsError(f"the base {revision!r} is not a Git revision")
    archive = _git(project, "archive", "--format=tar", f"{_merge_base(project, revision)}^{{tree}}")
    if archive.returncode != 0:
        error = archive.stderr.decode().strip()
        raise GitopsError(
            f"the base {revision!r} is not a revision of {project}: {error} "
            "(a shallow clone may lack it; fetch it, or clone the full history)"
        )
    directory.mkdir()
    subprocess.run(["tar", "-x"], input=archive.stdout, cwd=directory, check=True)
    environment = project / ".venv"
    if environment.exists():
        (directory / ".venv").symlink_to(environment.resolve())
    return directory


def content_at(file: Path, revision: str) -> bytes | None:
    """Return the content of a file at the merge base with a revision; None if it is missing.

    Raises:
        GitopsError: If the revision is unknown.
    """
    commit = _merge_base(file.parent, revision)
    known = _git(file.parent, "cat-file", "-e", f"{commit}^{{commit}}")
    if known.returncode != 0:
        raise GitopsError(f"the base {revision!r} is not a revision: {known.stderr.decode()}")
    result = _git(file.parent, "show", f"{commit}:./{file.name}")
    return result.stdout if result.returncode == 0 else None


def _merge_base(project: Path, revision: str) -> str:
    """Return the merge base of HEAD and a revision, or the revision if there is no merge base."""
    result = _git(project, "merge-base", revision, "HEAD")
    return result.stdout.decode().strip() if result.returncode == 0 else revision


def _git(project: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=project, capture_output=True, check=False)


def _configure(stack: Stack, source: Path, directory: Path) -> None:
    """Write the configuration of a rendered stack, derived from the real stack's configuration."""
    config = document(source).get("config", {})
    secrets = list(secure_paths(config))
    config[f"{PROJECT}:cluster"] = _cluster_settings(config.get(f"{PROJECT}:cluster"), directory)
    run_images = _run_images(config.get(f"{PROJECT}:training"))
    _replace_builds(config.get(f"{PROJECT}:images"), stack.project, run_images)
    target = stack.file
    # `stack init` wrote the salt to the target file. Keep it, because it encrypts the placeholders.
    kept = {k: v for k, v in document(target).items() if k not in _STACK_KEYS}
    for path in secrets:
        _remove(config, path)
    # All YAML parsers read JSON in the same way. PyYAML would write the string 1e3 without quotes,
    # and Pulumi would read it as a number.
    target.write_text(json.dumps({**kept, "config": config}, ensure_ascii=False), "utf-8")
    for path in secrets:
        run_or_fail(
            stack,
            "config",
            "set",
            "--secret",
            "--path",
            _property_path(path),
            PLACEHOLDER,
            *stack_options(stack),
        )


def _cluster_settings(cluster: Any, directory: Path) -> dict[str, Any]:
    kept = {k: v for k, v in cluster.items() if k == "domain"} if isinstance(cluster, dict) else {}
    return {**kept, "render_to": str(directory / "manifests")}


def _run_images(training: Any) -> set[str]:
    """Return the keys of the images that jobs and sweep trials use."""
    trials = [sweep["job"] for sweep in _sections(training, "sweeps") if "job" in sweep]
    default = TrainingJobSettings.model_fields["image"].default
    jobs = [*_sections(training, "jobs"), *trials]
    return {str(job.get("image", default)) for job in jobs if isinstance(job, dict)}


def _sections(parent: Any, key: str) -> list[dict[str, Any]]:
    """Return the mappings under a key; empty if the settings are invalid."""
    found = parent.get(key) if isinstance(parent, dict) else None
    values = found.values() if isinstance(found, dict) else ()
    return [each for each in values if isinstance(each, dict)]


def _replace_builds(images: Any, project: Path, run_images: Collection[str]) -> None:
    """Replace image builds, in place, with references that contain the hash of their sources."""
    if not isinstance(images, dict) or not isinstance(images.get("workloads"), dict):
        return
    workloads = images["workloads"]
    for key, image in workloads.items():
        if isinstance(image, dict) and isinstance(image.get("build"), dict):
            digest = _identity(image["build"], project, is_run_image=key in run_images)
            if digest is not None:
                host = images.get("registry", "registry.invalid")
                path = images.get("repository", PROJECT)
                workloads[key] = {"reference": f"{host}/{path}/{key}@sha256:{digest}"}


def _identity(build: dict[str, Any], project: Path, *, is_run_image: bool) -> str | None:
    """Return the hash of an image's sources; None if the settings are invalid."""
    excluded = project if is_run_image else None
    try:
        return identity(BuildSettings.model_validate(build), project, project=excluded)
    except (ValueError, OSError):
        return None  # the program reports the error during the preview


def _remove(config: Any, path: tuple[str | int, ...]) -> None:
    *parents, last = path
    for step in parents:
        config = config[step]
    # A list must keep its length, because the placeholder is set at the same index.
    if isinstance(config, list):
        config[int(last)] = None
    else:
        del config[last]


def _property_path(path: tuple[str | int, ...]) -> str:
    """Return a path for `pulumi config set --path`, such as `project:key["name"][0]`."""
    key, *steps = path
    text = str(key)
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f'["{step}"]'
    return text
