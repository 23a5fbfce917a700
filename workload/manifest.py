"""Manifest of an export: the contract between training and inference.

This module does not import torch.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, model_validator

from workload.catalog import Option
from workload.configuration import first_problem
from workload.files import UNAVAILABLE, sha256_of, write_atomically

MANIFEST_FILE: Final = "manifest.json"
WEIGHTS_FILE: Final = "model.safetensors"
MAX_BYTES: Final = 64 * 2**20
"""Maximum size of a manifest. Training programs, which the server does not trust, write it."""

Dimension = Annotated[int, Field(ge=1, lt=2**31)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""An integer setting. Larger ones are read as floats: the server's JSON is limited to 64 bits."""

InputType = Literal["float32", "int64"]
"""Data type of the inputs: float32 for pixels and similar values, int64 for tokens."""


class ExportError(Exception):
    """An export or the result of a step is missing, damaged or unsuitable."""


class UnavailableExportError(ExportError):
    """A file of an export cannot be read at the moment, because its storage is unavailable.

    The file may be intact.
    """


def read_error(message: str, cause: Exception) -> ExportError:
    """Return an UnavailableExportError if `cause` is an error of network storage.

    Otherwise, return an ExportError.
    """
    is_unavailable = isinstance(cause, OSError) and cause.errno in UNAVAILABLE
    return UnavailableExportError(message) if is_unavailable else ExportError(message)


class File(BaseModel):
    """A file next to the manifest that lists it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    size: int = Field(gt=0, description="Size in bytes.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def content(self) -> str:
        """Description of the content for messages."""
        return "contents"


class Weights(File):
    """The file with the trained weights, from which the artifacts are derived."""

    file: str = Field(default=WEIGHTS_FILE, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)

    @property
    def content(self) -> str:
        """Description of the content for messages."""
        return "weights"


class Artifact(Weights):
    """A file with a variant of the model, and the variant's quality and speed."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    kind: str = Field(
        pattern=r"^[a-z0-9-]+$", description="Kind of the artifact: pt2, pruned or int8."
    )
    method: str = Field(default="", description="Method, such as static for int8.")
    setting: str = Field(
        default="",
        description="Setting that requested the artifact, such as prune 0.5; empty in exports of "
        "earlier versions.",
    )
    metrics: dict[str, float] = Field(default_factory=dict, description="Metrics of this variant.")
    metrics_before: dict[str, float] = Field(
        default_factory=dict, description="Metrics of the original model in the same evaluation."
    )
    relative_size: float = Field(gt=0, description="Size relative to the weights file.")
    relative_speed: float = Field(
        gt=0,
        description="Speed relative to the original model in eager fp32 (ratio of median times).",
    )
    seconds: float = Field(gt=0, description="Median seconds per batch on the CPU.")
    batch: int = Field(ge=1, description="Samples per timed batch.")
    threads: int = Field(default=1, ge=1, description="CPU threads.")
    largest_difference: float | None = Field(
        default=None,
        ge=0,
        description="Largest difference from the original model's outputs, on the timed batch.",
    )
    zeros: float | None = Field(
        default=None, ge=0, le=1, description="Share of zeros in the weights."
    )
    compressed_size: float | None = Field(
        default=None,
        gt=0,
        description="Size relative to the weights file, both compressed with zlib.",
    )

    @property
    def content(self) -> str:
        """Description of the content for messages."""
        return f"contents of artifact {self.kind}"


class Signature(BaseModel):
    """An input tensor as in the Open Inference Protocol; -1 stands for any size."""

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: tuple[int, ...]


class Manifest(BaseModel):
    """Manifest of an export. It is written last, so an export with a manifest is complete."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    format: int = Field(default=1, ge=1, le=1)
    model: str = Field(description="Name in workload.catalog.MODELS, or package.module:factory.")
    options: dict[str, Option] = Field(default_factory=dict, description="Options of the model.")
    input_shape: tuple[Dimension, ...] = Field(
        min_length=1,
        description="Shape of one sample: channels, height and width, or the number of tokens.",
    )
    input_dtype: InputType = "float32"
    classes: tuple[str, ...] = Field(
        default=(), description="Class names in the order of the outputs; empty for tokens."
    )
    outputs: Dimension = Field(
        default_factory=lambda data: len(data.get("classes", ())), validate_default=True
    )
    metrics: dict[str, float] = Field(
        description="Metrics on held-out data at the end of training."
    )
    weights: Weights
    artifacts: tuple[Artifact, ...] = Field(
        default=(), description="Files with variants of the same model."
    )
    skipped: tuple[str, ...] = Field(
        default=(),
        description="Settings whose artifacts could not be exported, such as quantize static.",
    )
    run: str = Field(default="", description="Name of the training run.")
    settings: dict[str, str | Integer | float] = Field(
        default_factory=dict, description="Settings of TrainingConfig that affect the result."
    )
    data_sha256: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="Digest of the data set; empty in exports of earlier versions.",
    )
    torch_version: str
    code_version: str = Field(default="", description="Version of the training program.")

    @model_validator(mode="after")
    def _check_class_count(self) -> Self:
        if self.classes and len(self.classes) != self.outputs:
            raise ValueError(f"there are {len(self.classes)} classes for {self.outputs} outputs")
        return self

    @model_validator(mode="after")
    def _check_duplicates(self) -> Self:
        names = [MANIFEST_FILE, self.weights.file, *(artifact.file for artifact in self.artifacts)]
        kinds = [artifact.kind for artifact in self.artifacts]
        if duplicate := _first_duplicate(names) or _first_duplicate(kinds):
            raise ValueError(f"{duplicate} is listed twice")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def signature(self) -> Signature:
        """Input of the model: a batch of any size."""
        shape = (-1, *self.input_shape)
        if self.input_dtype == "int64":
            return Signature(name="tokens", datatype="INT64", shape=shape)
        return Signature(
            name="images" if len(shape) == 4 else "inputs", datatype="FP32", shape=shape
        )

    @property
    def version(self) -> str:
        """Short name that identifies the weights."""
        return self.weights.sha256[:12]

    def artifact(self, kind: str) -> Artifact:
        """Return the artifact of this kind. Raise ExportError if there is none."""
        for artifact in self.artifacts:
            if artifact.kind == kind:
                return artifact
        known = ", ".join(artifact.kind for artifact in self.artifacts) or "none"
        raise ExportError(f"the export has no artifact {kind!r}; its artifacts: {known}")


def _first_duplicate(names: Iterable[str]) -> str:
    return next((name for name, count in Counter(names).items() if count > 1), "")


def read_manifest(directory: Path) -> Manifest:
    """Read an export's manifest. Raise ExportError if it is missing, invalid or unavailable."""
    path = directory / MANIFEST_FILE
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ExportError(f"{path} does not exist yet") from None
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
    if len(text) > MAX_BYTES:
        raise ExportError(f"{path} is larger than {MAX_BYTES} bytes")
    return parse_manifest(text, str(path))


def parse_manifest(text: bytes, location: str) -> Manifest:
    """Parse a manifest that was read from `location`. Raise ExportError if it is damaged."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = first_problem(error, "the document")
        raise ExportError(f"{location} is damaged: {problem}") from None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write an export's manifest. All files that it lists must already be on disk."""
    text = manifest.model_dump_json(indent=2, exclude_none=True) + "\n"
    write_atomically(directory / MANIFEST_FILE, text.encode())


def checked_file(directory: Path, file: File, progress: Callable[[], object] = int) -> Path:
    """Return a file's path, calling `progress` regularly while the file is read.

    Raise ExportError if the size or the digest differs from the manifest, or if the file cannot be
    read.
    """
    path = directory / file.file
    try:
        size = path.stat().st_size
        if size != file.size:
            raise ExportError(f"{path} has {size} bytes, but the manifest states {file.size}")
        digest = sha256_of(path, progress)
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
    if digest != file.sha256:
        raise ExportError(
            f"{path} has sha256 {digest[:12]}…, but the manifest states {file.sha256[:12]}…: "
            f"the {file.content} are not those that were exported"
        )
    return path
