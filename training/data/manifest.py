"""What a prepared data set says about itself: the agreement between preparing and training."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from training.data.progress import Progress, Tell
from training.data.samples import DataError
from workload.configuration import first_problem
from workload.files import write_atomically

MANIFEST_FILE: Final = "manifest.json"
LARGEST_SIDE: Final = 4096
"""Pixels of an image's height or width: what claims to be larger is never decoded."""
CHUNK: Final = 8 * 2**20

SHARDS_KIND: Final = "shards"
TOKENS_KIND: Final = "tokens"


Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Model):
    """A file beside the manifest: never one elsewhere, whatever a manifest says."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    size: int = Field(ge=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    count: int = Field(ge=0, description="samples, or tokens")


class ShardSplit(_Model):
    """Tar files of images, and an array that says where in them each sample is."""

    parts: tuple[Part, ...]
    index: Part


class TokenSplit(_Model):
    """Binary files of tokens."""

    parts: tuple[Part, ...]


def _all_different(parts: tuple[Part, ...]) -> None:
    if len({part.file for part in parts}) < len(parts):
        raise ValueError("a file is named twice")


class ShardsManifest(_Model):
    """Labelled images of one shape."""

    kind: Literal["shards"] = SHARDS_KIND
    format: Literal[1] = 1
    shape: tuple[Literal[1, 3], Side, Side] = Field(description="channels, height, width")
    classes: tuple[str, ...] = Field(min_length=1, description="in the order of the labels")
    train: ShardSplit
    held_out: ShardSplit
    dropped: dict[str, int] = Field(default_factory=dict, description="reasons and their counts")
    settings: dict[str, str | int | float] = Field(default_factory=dict)

    def parts(self) -> tuple[Part, ...]:
        """All files."""
        splits = (self.train, self.held_out)
        return tuple(part for split in splits for part in (*split.parts, split.index))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for split in (self.train, self.held_out):
            if sum(part.count for part in split.parts) != split.index.count:
                raise ValueError("the shards have other counts than their index")
        _all_different(self.parts())
        return self


class TokensManifest(_Model):
    """Text as numbers."""

    kind: Literal["tokens"] = TOKENS_KIND
    format: Literal[1] = 1
    dtype: Literal["uint16", "uint32"] = Field(description="of a token, low byte first")
    vocabulary: int = Field(ge=1, le=2**31, description="different tokens")
    tokenizer: Part | None = Field(
        default=None, description="tokenizer.json; none where tokens are bytes"
    )
    train: TokenSplit
    held_out: TokenSplit
    dropped: dict[str, int] = Field(default_factory=dict, description="reasons and their counts")
    settings: dict[str, str | int | float] = Field(default_factory=dict)

    def parts(self) -> tuple[Part, ...]:
        """All files."""
        tokenizer = (self.tokenizer,) if self.tokenizer else ()
        return (*self.train.parts, *self.held_out.parts, *tokenizer)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        width = int(self.dtype[4:]) // 8
        for part in (*self.train.parts, *self.held_out.parts):
            if part.size != part.count * width:
                raise ValueError(f"{part.file} has {part.size} bytes, not {width} for each token")
        _all_different(self.parts())
        return self


Manifest = ShardsManifest | TokensManifest
_ANY: Final[TypeAdapter[Manifest]] = TypeAdapter(Annotated[Manifest, Field(discriminator="kind")])


def read_manifest(folder: Path) -> Manifest:
    """Read a prepared data set's manifest. Raises DataError."""
    path = folder / MANIFEST_FILE
    try:
        return _ANY.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: make the data set with python -m training.data prepare, "
            "or write another data_dir"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = first_problem(error, "the document")
        raise DataError(f"{path} is damaged: {problem}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest; all that it names must be on the disk. Raises OSError."""
    text = manifest.model_dump_json(indent=2) + "\n"
    write_atomically(folder / MANIFEST_FILE, lambda stream: stream.write(text.encode()))


def verify(folder: Path, parts: Iterable[Part], digests: bool, tell: Tell) -> None:
    """Compare files with the manifest: their sizes, and their SHA-256 as well where `digests`.

    Raises DataError that names the first file which differs.
    """
    parts = tuple(parts)
    for part in parts:
        path = folder / part.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        if size != part.size:
            raise DataError(f"{path} is damaged: {size} bytes instead of {part.size}")
    if not digests:
        return
    progress = Progress(f"bytes of {folder} checked", sum(part.size for part in parts), tell)
    for part in parts:
        if _sha256_of(folder / part.file, progress) != part.sha256:
            raise DataError(
                f"{folder / part.file} is damaged: its sha256 is not that of the manifest, "
                "so copy it or prepare the data set anew"
            )


def _sha256_of(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                progress.advance(len(chunk))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()
