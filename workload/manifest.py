"""What an export says about itself: the agreement between training and inference. No torch."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, model_validator

from workload.catalog import Option
from workload.configuration import first_problem
from workload.files import sha256_of, write_atomically

MANIFEST_FILE: Final = "manifest.json"
WEIGHTS_FILE: Final = "model.safetensors"

InputType = Literal["float32", "int64"]
"""Pixels from 0 to 1 or the like, or tokens."""


class ExportError(Exception):
    """An export is missing, incomplete or damaged; the message says which and where."""


class Weights(BaseModel):
    """A file beside the manifest: the weights, of which everything else was made."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: str = Field(default=WEIGHTS_FILE, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    size: int = Field(gt=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def what(self) -> str:
        """In messages."""
        return "weights"


class Artifact(Weights):
    """The same model in another form, and what that form costs and gains."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    kind: str = Field(pattern=r"^[a-z0-9-]+$", description="pt2, pruned or int8")
    method: str = Field(default="", description="how it was made, such as static for int8")
    metrics: dict[str, float] = Field(default_factory=dict, description="of this form")
    metrics_before: dict[str, float] = Field(
        default_factory=dict, description="of the weights, judged in the same way"
    )
    relative_size: float = Field(gt=0, description="this file over the weights' file")
    relative_speed: float = Field(
        gt=0, description="median seconds of the weights in eager fp32 over those of this form"
    )
    seconds: float = Field(gt=0, description="median of one batch, on the CPU")
    batch: int = Field(ge=1, description="samples in the batch that was timed")
    threads: int = Field(default=1, ge=1, description="of the CPU that computed it")
    largest_difference: float | None = Field(
        default=None, ge=0, description="of an output from that of the weights, on the batch"
    )
    zeros: float | None = Field(
        default=None, ge=0, le=1, description="share of the weights that are 0"
    )
    compressed_size: float | None = Field(
        default=None, gt=0, description="this file over the weights' file, both compressed by zlib"
    )

    @property
    def what(self) -> str:
        """In messages."""
        return f"contents of artifact {self.kind}"


class Signature(BaseModel):
    """A tensor that the model takes, in the words of the Open Inference Protocol; -1 is any."""

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: tuple[int, ...]


class Manifest(BaseModel):
    """Written last: where it is, the export is complete."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    format: int = Field(default=1, ge=1, le=1)
    model: str = Field(description="name in workload.catalog.MODELS, or package.module:factory")
    options: dict[str, Option] = Field(default_factory=dict, description="of the model")
    input_shape: tuple[int, ...] = Field(
        min_length=1,
        description="of one sample without the batch: channels, height, width, or tokens",
    )
    input_dtype: InputType = "float32"
    classes: tuple[str, ...] = Field(
        default=(), description="in the order of the outputs; none where outputs are tokens"
    )
    outputs: int = Field(
        default_factory=lambda data: len(data.get("classes", ())), ge=1, validate_default=True
    )
    metrics: dict[str, float] = Field(description="at the end of training, on held-out data")
    weights: Weights
    artifacts: tuple[Artifact, ...] = Field(default=(), description="other forms of the same model")
    run: str = Field(default="", description="name of the training run")
    settings: dict[str, str | int | float] = Field(
        default_factory=dict, description="of TrainingConfig, those that decide the result"
    )
    torch_version: str
    code_version: str = Field(default="", description="of the program that trained it")

    @model_validator(mode="after")
    def _classes_name_the_outputs(self) -> Self:
        if self.classes and len(self.classes) != self.outputs:
            raise ValueError(f"{len(self.classes)} classes do not name {self.outputs} outputs")
        return self

    @model_validator(mode="after")
    def _files_differ(self) -> Self:
        names = [MANIFEST_FILE, self.weights.file, *(artifact.file for artifact in self.artifacts)]
        kinds = [artifact.kind for artifact in self.artifacts]
        if twice := _twice(names) or _twice(kinds):
            raise ValueError(f"{twice} is there twice")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def signature(self) -> Signature:
        """What the model takes: a batch of any size."""
        shape = (-1, *self.input_shape)
        if self.input_dtype == "int64":
            return Signature(name="tokens", datatype="INT64", shape=shape)
        return Signature(
            name="images" if len(shape) == 4 else "inputs", datatype="FP32", shape=shape
        )

    @property
    def version(self) -> str:
        """Short name of exactly these weights."""
        return self.weights.sha256[:12]

    def artifact(self, kind: str) -> Artifact:
        """Return the artifact of this kind. Raises ExportError when there is none."""
        for artifact in self.artifacts:
            if artifact.kind == kind:
                return artifact
        known = ", ".join(artifact.kind for artifact in self.artifacts) or "none"
        raise ExportError(f"the export has no artifact {kind!r}: it has {known}")


def _twice(names: Iterable[str]) -> str:
    return next((name for name, count in Counter(names).items() if count > 1), "")


def read_manifest(folder: Path) -> Manifest:
    """Read an export's manifest. Raises ExportError when it is missing or not as agreed."""
    path = folder / MANIFEST_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ExportError(f"{path} is not there yet") from None
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from None
    return parse_manifest(text, str(path))


def parse_manifest(text: bytes, location: str) -> Manifest:
    """Parse a manifest that was read from `location`. Raises ExportError when it is damaged."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = first_problem(error, "the document")
        raise ExportError(f"{location} is damaged: {problem}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write an export's manifest; everything that it names must be on the disk. Raises OSError."""
    text = manifest.model_dump_json(indent=2, exclude_none=True) + "\n"
    write_atomically(folder / MANIFEST_FILE, lambda stream: stream.write(text.encode()))


def checked_file(folder: Path, file: Weights) -> Path:
    """Path of a file of the export, after its size and digest were compared.

    Raises ExportError.
    """
    path = folder / file.file
    try:
        size = path.stat().st_size
        if size != file.size:
            raise ExportError(f"{path} has {size} bytes, its manifest says {file.size}")
        digest = sha256_of(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from None
    if digest != file.sha256:
        raise ExportError(
            f"{path} has sha256 {digest[:12]}…, its manifest says {file.sha256[:12]}…: "
            f"the {file.what} are not those that were exported"
        )
    return path
