"""Manifest of a prepared data set: the contract between preparation and training."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from training.data.progress import Progress, Report
from training.data.samples import DataError, read_error
from workload.configuration import first_problem
from workload.files import exists, write_atomically
from workload.store import DamagedError, StoreDirectory, StoreError

MANIFEST_FILE: Final = "manifest.json"
MAX_SIDE: Final = 4096
"""Maximum height and width of an image in pixels; larger ones are never decoded."""
CHUNK_BYTES: Final = 8 * 2**20

SHARDS_KIND: Final = "shards"
TOKENS_KIND: Final = "tokens"


Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Model):
    """Manifest entry of a file in the same directory."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    size: int = Field(ge=0, description="Size in bytes.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    count: int = Field(ge=0, description="Number of samples or tokens.")


class ShardSplit(_Model):
    """Tar files of images, and an index with the location and the label of each sample."""

    parts: tuple[Part, ...]
    index: Part


class TokenSplit(_Model):
    """Binary files of tokens."""

    parts: tuple[Part, ...]


def _require_unique_files(parts: tuple[Part, ...]) -> None:
    if len({part.file for part in parts}) < len(parts):
        raise ValueError("it lists a file twice")


class ShardsManifest(_Model):
    """Manifest of labeled images, which all have the same shape."""

    kind: Literal["shards"] = SHARDS_KIND
    format: Literal[1] = 1
    shape: tuple[Literal[1, 3], Side, Side] = Field(description="Channels, height and width.")
    classes: tuple[str, ...] = Field(
        min_length=1, description="Class names in the order of the labels."
    )
    train: ShardSplit
    held_out: ShardSplit
    dropped: dict[str, int] = Field(
        default_factory=dict, description="Number of dropped samples by reason."
    )
    settings: dict[str, str | int | float] = Field(default_factory=dict)

    def parts(self) -> tuple[Part, ...]:
        """Return the entries of all files."""
        splits = (self.train, self.held_out)
        return tuple(part for split in splits for part in (*split.parts, split.index))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for split in (self.train, self.held_out):
            if sum(part.count for part in split.parts) != split.index.count:
                raise ValueError("the shards and their index have different counts")
        _require_unique_files(self.parts())
        return self


class TokensManifest(_Model):
    """Manifest of tokenized text."""

    kind: Literal["tokens"] = TOKENS_KIND
    format: Literal[1] = 1
    dtype: Literal["uint16", "uint32"] = Field(description="Data type of a token, little-endian.")
    vocabulary: int = Field(ge=1, le=2**31, description="Number of different tokens.")
    tokenizer: Part | None = Field(
        default=None, description="tokenizer.json; None if tokens are bytes."
    )
    train: TokenSplit
    held_out: TokenSplit
    dropped: dict[str, int] = Field(
        default_factory=dict, description="Number of dropped samples by reason."
    )
    settings: dict[str, str | int | float] = Field(default_factory=dict)

    def parts(self) -> tuple[Part, ...]:
        """Return the entries of all files."""
        tokenizer = (self.tokenizer,) if self.tokenizer else ()
        return (*self.train.parts, *self.held_out.parts, *tokenizer)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        width = int(self.dtype[4:]) // 8
        for part in (*self.train.parts, *self.held_out.parts):
            if part.size != part.count * width:
                raise ValueError(f"{part.file} has {part.size} bytes, not {width} per token")
        _require_unique_files(self.parts())
        return self


Manifest = ShardsManifest | TokensManifest
_ADAPTER: Final[TypeAdapter[Manifest]] = TypeAdapter(
    Annotated[Manifest, Field(discriminator="kind")]
)


def read_manifest(directory: Path) -> Manifest:
    """Read a prepared data set's manifest; raise DataError if it is missing or damaged."""
    path = directory / MANIFEST_FILE
    try:
        return _parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: create the data set with python -m training.data prepare, "
            "or choose another data_dir"
        ) from None
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None


def _parse(text: bytes, location: str) -> Manifest:
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        problem = first_problem(error, "the document")
        raise DataError(f"{location} is damaged: {problem}") from None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest. All files that it lists must already be on disk."""
    text = manifest.model_dump_json(indent=2) + "\n"
    write_atomically(directory / MANIFEST_FILE, text.encode())


def download(url: str, directory: Path, report: Report) -> None:
    """Download and verify a prepared data set from an object store; keep local files that match.

    The manifest is written last. Raise DataError if the directory contains a different data set or
    cannot be written, or if a file does not match the manifest; raise StoreError if a file cannot
    be read.
    """
    source = StoreDirectory(url)
    text = source.read(MANIFEST_FILE)
    if text is None:
        raise DataError(f"{url} has no {MANIFEST_FILE}: use the URL of a prepared data set")
    parts = _parse(text, f"{url}/{MANIFEST_FILE}").parts()
    path = directory / MANIFEST_FILE
    if exists(path) and path.read_bytes() != text:
        raise DataError(
            f"{directory} contains a data set that differs from {url}: choose another data_dir"
        )
    progress = Progress(f"bytes of {url} fetched", sum(part.size for part in parts), report)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for part in parts:
            if not _matches(directory / part.file, part, progress):
                source.download(
                    part.file, directory / part.file, part.size, part.sha256, progress.advance
                )
        write_atomically(path, text)
    except DamagedError as error:
        raise DataError(str(error)) from None
    except StoreError:
        raise
    except OSError as error:
        raise read_error(
            f"data_dir {directory} cannot be written: {error.strerror}; mount a larger volume, or "
            "one that is writable",
            error,
        ) from None


def _matches(path: Path, part: Part, progress: Progress) -> bool:
    found = exists(path) and path.stat().st_size == part.size
    return found and _sha256_of(path, progress) == part.sha256


@dataclass(frozen=True)
class Verification:
    """Record of verified files, so that a restarted run does not verify them again.

    `record`, a file in the run's directory, contains the digest, size and modification time (ns) of
    each verified file. If it is None, all files are verified at every start. The record is updated
    only if `writes` is true.
    """

    record: Path | None = None
    writes: bool = True

    def known(self) -> dict[str, list[object]]:
        """Return the record, keyed by file name; empty if there is none or if it is damaged."""
        try:
            known = json.loads(self.record.read_bytes()) if self.record else {}
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def save(self, matched: dict[str, list[object]]) -> None:
        """Write the record if it has changed."""
        if self.record and self.writes and matched != self.known():
            write_atomically(self.record, json.dumps(matched).encode())


def verify(
    directory: Path, parts: Iterable[Part], verification: Verification | None, report: Report
) -> None:
    """Compare the sizes and the SHA-256 digests of files with the manifest.

    Files that have not changed since they were last verified are not read again. If `verification`
    is None, nothing is compared. Raise DataError if a file differs; the message names the first
    one.
    """
    if verification is None:
        return
    parts, found = tuple(parts), dict[str, list[object]]()
    for part in parts:
        path = directory / part.file
        try:
            status = path.stat()
        except OSError as error:
            raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
        if status.st_size != part.size:
            raise DataError(f"{path} is damaged: {status.st_size} bytes instead of {part.size}")
        found[part.file] = [part.sha256, status.st_size, status.st_mtime_ns]
    known = verification.known()
    unknown = [part for part in parts if known.get(part.file) != found[part.file]]
    progress = Progress(f"bytes of {directory} checked", sum(part.size for part in unknown), report)
    for part in unknown:
        if _sha256_of(directory / part.file, progress) != part.sha256:
            raise DataError(
                f"{directory / part.file} is damaged: its sha256 differs from the manifest; "
                "copy it again, or prepare the data set again"
            )
    verification.save(found)


M = TypeVar("M", ShardsManifest, TokensManifest)


def read_verified(
    directory: Path, kind: type[M], verification: Verification | None, report: Report
) -> M:
    """Read a manifest of this kind and verify its files; raise DataError if one is damaged."""
    manifest = read_manifest(directory)
    if not isinstance(manifest, kind):
        raise DataError(
            f"{directory} contains {manifest.kind}: set dataset to {manifest.kind}, or choose "
            "another data_dir"
        )
    verify(directory, manifest.parts(), verification, report)
    return manifest


def _sha256_of(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                progress.advance(len(chunk))
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
    return digest.hexdigest()
