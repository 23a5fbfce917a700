"""Results of steps: typed parameters and artifacts, shared by all runs on a PersistentVolumeClaim.

A result's name is the hash of everything that determines the result. Its manifest is written last,
and its directory is renamed atomically, so a result that exists is complete.
"""

import contextlib
import hashlib
import json
import math
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from workload.configuration import first_problem
from workload.files import is_file, sha256_of, sync_files, sync_folder, write_atomically
from workload.manifest import (
    MANIFEST_FILE,
    ExportError,
    File,
    UnavailableExportError,
    checked_file,
    read_error,
    read_manifest,
)

RESULTS_DIRECTORY: Final = ".steps"
"""Directory on the PersistentVolumeClaim, next to the directories of the runs. No run can have this
name."""

STEPS_DIRECTORY: Final = "steps"
"""Subdirectory of a run with a file for each step that was skipped or has a result."""

TRAINING: Final = "train"
EXPORT: Final = "export"
"""Name of the training step's output whose value is the directory of the export.

All other outputs of the training step are metrics.
"""

OUTPUT_NAME: Final = r"[a-z][a-z0-9_]*"
PLACEHOLDER: Final = re.compile(rf"\$\((inputs|outputs)\.({OUTPUT_NAME})\)")
PARAMETERS: Final = ("number", "text", "boolean")
MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]*")

_MAX_TEXT: Final = 32 * 1024

Parameter = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictStr


class StepArtifact(File):
    """A file that a step has written."""

    media_type: str = Field(pattern=rf"^{MEDIA_TYPE.pattern}$")


class StepManifest(BaseModel):
    """Manifest of a step's result: everything that determines the result, and the outputs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: Literal[1] = 1
    step: str
    run: str = Field(description="Run whose step wrote the result.")
    image: str = Field(description="String that identifies the contents of the image.")
    command: tuple[str, ...]
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables that affect the result."
    )
    inputs: dict[str, str] = Field(default_factory=dict, description="Digests of the inputs.")
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    artifacts: dict[str, StepArtifact] = Field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """Value of an input: the text that replaces its placeholder, and the digest of its content.

    For a parameter or metric, `digest` contains the text itself instead of a hash. `element` is
    the JSON that represents the value in a list.
    """

    text: str
    digest: str
    element: str


def marker_of(run: Path, step: str) -> Path:
    """Return the path of the file that records the outcome of a step."""
    return run / STEPS_DIRECTORY / f"{step}.json"


def read_marker(run: Path, step: str) -> Mapping[str, str]:
    """Return the outcome of a step; empty if the step was not skipped and has no result."""
    try:
        found: dict[str, str] = json.loads(marker_of(run, step).read_bytes())
    except FileNotFoundError:
        return {}
    return found


def write_marker(run: Path, step: str, state: str, **details: str) -> None:
    """Record that a step was skipped or has a result."""
    path = marker_of(run, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"state": state, **details}).encode())


def resolve(run: Path, reference: str) -> Value:
    """Return the value of a reference `<step>.<output>`, or of a bracketed list of references.

    Raises:
        ExportError: If the result does not exist, or a file does not match its digest.
    """
    if reference.startswith("["):
        values = [resolve(run, each) for each in reference.strip("[]").split(",")]
        text = "[" + ", ".join(value.element for value in values) + "]"
        return Value(text, ",".join(value.digest for value in values), text)
    step, _, output = reference.partition(".")
    if step == TRAINING:
        return _training_output(run / "export", output)
    name = read_marker(run, step).get("result")
    if name is None:
        raise ExportError(f"{marker_of(run, step)} contains no result of step {step}")
    directory = run.parent / RESULTS_DIRECTORY / name
    manifest = read_result(directory)
    if output in manifest.parameters:
        text = _as_text(manifest.parameters[output])
        return Value(text, json.dumps(text), json.dumps(manifest.parameters[output]))
    if output not in manifest.artifacts:
        known = ", ".join([*manifest.parameters, *manifest.artifacts])
        raise ExportError(f"{directory} has no output {output!r}; its outputs: {known}")
    artifact = manifest.artifacts[output]
    path = str(checked_file(directory, artifact))
    return Value(path, artifact.sha256, json.dumps(path))


def _training_output(directory: Path, output: str) -> Value:
    manifest = read_manifest(directory)
    if output == EXPORT:
        files = (manifest.weights, *manifest.artifacts)
        for file in files:
            checked_file(directory, file)
        digest = digest_of([[file.file, file.sha256] for file in files])
        return Value(str(directory), digest, json.dumps(str(directory)))
    if output not in manifest.metrics:
        known = ", ".join(sorted(manifest.metrics)) or "none"
        raise ExportError(f"the export has no metric {output!r}; its metrics: {known}")
    text = _as_text(manifest.metrics[output])
    return Value(text, text, text)


def digest_of(described: object) -> str:
    """Return the hexadecimal SHA-256 of a JSON document."""
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_result(directory: Path) -> StepManifest:
    """Read the manifest of a result.

    Raises:
        ExportError: If the manifest is missing, damaged or unavailable.
    """
    path = directory / MANIFEST_FILE
    try:
        return StepManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
    except ValidationError as error:
        raise ExportError(f"{path} is damaged: {first_problem(error, 'the document')}") from None


def complete_result(directory: Path) -> StepManifest | None:
    """Return the manifest of a result; None if the result is missing or damaged.

    Raise UnavailableExportError if the result cannot be read at the moment.
    """
    try:
        manifest = read_result(directory)
        for artifact in manifest.artifacts.values():
            checked_file(directory, artifact)
    except UnavailableExportError:
        raise
    except ExportError:
        return None
    return manifest


def collect(
    directory: Path, types: Mapping[str, str]
) -> tuple[dict[str, Parameter], dict[str, StepArtifact]]:
    """Check the outputs that a command wrote into a directory; return parameters and artifacts.

    Raises:
        ValueError: If an output is missing or does not have the declared type.
        OSError: If an output cannot be read.
    """
    parameters: dict[str, Parameter] = {}
    artifacts: dict[str, StepArtifact] = {}
    for name, type_ in types.items():
        path = directory / name
        if path.is_symlink() or not is_file(path):
            raise ValueError(
                f"output {name!r} is missing: the command must write a file to $(outputs.{name})"
            )
        if type_ in PARAMETERS:
            parameters[name] = _parameter(name, type_, path)
        elif path.stat().st_size == 0:
            raise ValueError(f"output {name!r} is empty: an artifact must have content")
        else:
            artifacts[name] = StepArtifact(
                file=name, size=path.stat().st_size, sha256=sha256_of(path), media_type=type_
            )
    return parameters, artifacts


def publish(unfinished: Path, manifest: StepManifest, directory: Path) -> StepManifest:
    """Rename a result to `directory` unless a complete one exists there.

    Return the manifest of the result in `directory`.
    """
    write_atomically(
        unfinished / MANIFEST_FILE, (manifest.model_dump_json(indent=2) + "\n").encode()
    )
    sync_files(unfinished)
    try:
        unfinished.rename(directory)
    except OSError:
        # `directory` exists: another run was faster, or the files of an earlier result are damaged.
        if (existing := complete_result(directory)) is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
            return existing
        damaged = directory.with_name(f".{directory.name}.damaged.{secrets.token_hex(4)}")
        directory.rename(damaged)
        unfinished.rename(directory)
        shutil.rmtree(damaged, ignore_errors=True)
    sync_folder(directory.parent)
    return manifest


def _parameter(name: str, type_: str, path: Path) -> Parameter:
    with path.open("rb") as stream:
        content = stream.read(_MAX_TEXT + 1)
    if len(content) > _MAX_TEXT:
        raise ValueError(
            f"output {name!r} has more than {_MAX_TEXT} bytes: declare it as an artifact"
        )
    try:
        text = content.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise ValueError(f"output {name!r} is not UTF-8 text") from None
    if type_ == "text":
        # Commands and environment variables cannot contain null characters.
        if "\0" in text:
            raise ValueError(f"output {name!r} contains a null character: remove it")
        return text
    wanted = bool if type_ == "boolean" else (int, float)
    with contextlib.suppress(ValueError, RecursionError):
        value: object = json.loads(text)
        if isinstance(value, wanted) and isinstance(value, bool) == (type_ == "boolean"):
            if isinstance(value, bool | int):
                return value
            if isinstance(value, float) and math.isfinite(value):
                return value
    shown = text if len(text) <= 40 else f"{text[:37]}…"
    example = "true or false" if type_ == "boolean" else "a number such as 0.25"
    raise ValueError(f"output {name!r} is {shown!r}, but has type {type_}: write {example}")


def _as_text(value: Parameter) -> str:
    return value if isinstance(value, str) else json.dumps(value)
