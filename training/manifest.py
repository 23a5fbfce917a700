"""What an export says about itself: the agreement between training and inference. No torch."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.files import sha256_of, write_atomically

MANIFEST_FILE: Final = "manifest.json"
WEIGHTS_FILE: Final = "model.safetensors"


class ExportError(Exception):
    """An export is missing, incomplete or damaged; the message says which and where."""


class Weights(BaseModel):
    """The file of weights, beside the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(WEIGHTS_FILE, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    size: int = Field(gt=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Written last: where it is, the export is complete."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    format: int = Field(1, ge=1, le=1)
    model: str = Field(description="name in training.models.MODELS")
    input_shape: tuple[int, ...] = Field(
        min_length=1, description="of one sample without the batch: channels, height, width"
    )
    classes: tuple[str, ...] = Field(min_length=1, description="in the order of the outputs")
    metrics: dict[str, float] = Field(description="at the end of training, on held-out data")
    weights: Weights
    run: str = Field("", description="name of the training run")
    settings: dict[str, str | int | float] = Field(
        default_factory=dict, description="of TrainingConfig, those that decide the result"
    )
    torch_version: str

    @property
    def version(self) -> str:
        """Short name of exactly these weights."""
        return self.weights.sha256[:12]


def read_manifest(folder: Path) -> Manifest:
    """Read an export's manifest. Raises ExportError when it is missing or not as agreed."""
    path = folder / MANIFEST_FILE
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ExportError(f"{path} is not there yet") from None
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ExportError(f"{path} is damaged: {field}: {first['msg']}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write an export's manifest; everything that it names must be on the disk. Raises OSError."""
    text = manifest.model_dump_json(indent=2) + "\n"
    write_atomically(folder / MANIFEST_FILE, lambda stream: stream.write(text.encode()))


def checked_weights(folder: Path, manifest: Manifest) -> Path:
    """Path of the weights, after their size and digest were compared. Raises ExportError."""
    path = folder / manifest.weights.file
    try:
        size = path.stat().st_size
        if size != manifest.weights.size:
            raise ExportError(f"{path} has {size} bytes, its manifest says {manifest.weights.size}")
        digest = sha256_of(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from None
    if digest != manifest.weights.sha256:
        raise ExportError(
            f"{path} has sha256 {digest[:12]}…, its manifest says {manifest.version}…: "
            "the weights are not those that were exported"
        )
    return path
