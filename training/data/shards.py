"""Labeled images in WebDataset tar files: NUMBER.png or .jpg, and NUMBER.cls.

The webdataset package reads shards as streams. Here, an index next to the shards allows random
access. An interrupted run therefore resumes at the same sample, even with a different number of
processes, and sees each sample once per epoch. The tar files are not unpacked.
"""

import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import (
    MANIFEST_FILE,
    ShardsManifest,
    ShardSplit,
    Verification,
    read_verified,
)
from training.data.progress import Report
from training.data.samples import (
    DataError,
    Dataset,
    Indices,
    Targets,
    local_order,
    read_error,
)
from workload.files import sha256_of

MAX_IMAGE_BYTES: Final = 64 * 2**20
"""Maximum size of a stored image."""
WINDOW: Final = 8
"""Number of shards whose samples are shuffled together."""
IMAGE_FORMATS: Final = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG"}
LABEL: Final = "cls"


@dataclass(frozen=True)
class Shards:
    """Images in tar files.

    `index` (N x 4) contains the file number, offset, size and label of each image. Files are opened
    for each batch, so that no file is open when processes fork, and only paths and numbers are
    pickled.
    """

    paths: tuple[Path, ...]
    index: NDArray[np.int64]
    shape: tuple[int, int, int]

    divisor = 255

    def __len__(self) -> int:
        return len(self.index)

    def order(self, random: np.random.Generator) -> Indices:
        """Return a random permutation that shuffles within a few shards at a time."""
        sizes = np.bincount(self.index[:, 0], minlength=len(self.paths))
        return local_order(sizes.tolist(), WINDOW, random)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Return pixels of shape (N, *shape) and labels of shape (N,).

        Raise DataError if an image cannot be read; the message names the shard.
        """
        rows = self.index[indices]
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        for number in np.unique(rows[:, 0]):
            path = self.paths[number]
            try:
                with path.open("rb") as shard:
                    for position in np.flatnonzero(rows[:, 0] == number):
                        _, offset, size, _ = rows[position].tolist()
                        pixels[position] = self._read(shard, offset, size)
            except (OSError, ValueError) as error:
                raise read_error(f"{path} is damaged or cannot be read: {error}", error) from None
        return pixels, rows[:, 3]

    def _read(self, shard: BinaryIO, offset: int, size: int) -> NDArray[np.uint8]:
        shard.seek(offset)
        content = shard.read(size)
        if len(content) != size:
            raise ValueError(f"the file ends within the image at byte {offset}")
        try:
            return decode(content, self.shape)
        except ValueError as error:
            raise ValueError(f"the image at byte {offset} {error}") from None


def decode(content: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Decode a PNG or JPEG image to channels x height x width.

    The size of the image is checked before decoding, so a small file cannot exhaust the memory.
    Raise ValueError if the image is damaged, has a different shape, or is not an 8-bit gray or RGB
    image.
    """
    # Imported here: other data sets do not need Pillow.
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(BytesIO(content), formats=("PNG", "JPEG")) as image:
            found = (len(image.getbands()), image.height, image.width)
            if found != shape:
                raise ValueError(f"has shape {found}, but the manifest states {shape}")
            # The pixels of other images are palette indices, single bits or 16-bit values.
            if image.mode not in ("L", "RGB"):
                raise ValueError(f"has mode {image.mode}, but must be an 8-bit gray or RGB image")
            pixels = np.asarray(image, np.uint8).reshape(height, width, channels)
    # Pillow raises SyntaxError for broken PNG files, and may be configured to raise its warnings.
    except (OSError, SyntaxError, Image.DecompressionBombError, Warning) as error:
        raise ValueError(f"cannot be decoded: {error}") from None
    return pixels.transpose(2, 0, 1)


def shards(directory: Path, verification: Verification | None, report: Report) -> Dataset:
    """Load a prepared image data set and verify its files; raise DataError if one is damaged."""
    manifest = read_verified(directory, ShardsManifest, verification, report)
    train, held_out = (
        Shards(
            tuple(directory / part.file for part in split.parts),
            read_index(directory, split, len(manifest.classes)),
            manifest.shape,
        )
        for split in (manifest.train, manifest.held_out)
    )
    for part, use in ((train, "training"), (held_out, "held-out")):
        if not len(part):
            raise DataError(f"{directory} contains no {use} image")
    identity = sha256_of(directory / MANIFEST_FILE)
    classes = manifest.classes
    return Dataset(train, held_out, manifest.shape, len(classes), classes, identity)


def read_index(directory: Path, split: ShardSplit, classes: int) -> NDArray[np.int64]:
    """Read an index (N x 4) and validate all its numbers; raise DataError if it is damaged."""
    path = directory / split.index.file
    try:
        index = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise read_error(f"{path} is damaged or cannot be read: {error}", error) from None
    if (
        not isinstance(index, np.ndarray)
        or index.dtype != np.int64
        or index.shape != (split.index.count, 4)
    ):
        raise DataError(f"{path} is not an index of {split.index.count} images")
    file, offset, size, label = index.T
    counts = np.array([part.count for part in split.parts], np.int64)
    ends = np.array([part.size for part in split.parts], np.int64)
    is_valid = (
        np.array_equal(file, np.repeat(np.arange(len(counts)), counts))
        and bool(np.all((offset >= 0) & (size > 0) & (size <= MAX_IMAGE_BYTES)))
        and bool(np.all(offset <= ends[file] - size))
        and bool(np.all((label >= 0) & (label < classes)))
    )
    if not is_valid:
        raise DataError(f"{path} is damaged: it contains invalid values")
    return index


def scan(path: Path, number: int) -> NDArray[np.int64]:
    """Build the index (N x 4) of one shard; raise DataError if the shard is not valid."""
    rows = []
    try:
        with tarfile.open(path, "r:") as shard:
            members = shard.getmembers()
            if len(members) % 2:
                raise ValueError(f"{members[-1].name} lacks its image or its label")
            for image, label in zip(members[::2], members[1::2], strict=True):
                rows.append((number, image.offset_data, image.size, _label(shard, image, label)))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise read_error(f"{path} is not a shard of images: {error}", error) from None
    return np.array(rows, np.int64).reshape(-1, 4)


def _label(shard: tarfile.TarFile, image: tarfile.TarInfo, label: tarfile.TarInfo) -> int:
    key, _, extension = image.name.partition(".")
    if extension not in IMAGE_FORMATS or label.name != f"{key}.{LABEL}":
        raise ValueError(
            f"members {image.name} and {label.name} are not an image (KEY.png, KEY.jpg) and its "
            f"label (KEY.{LABEL})"
        )
    content = shard.extractfile(label) if label.isreg() and label.size <= 20 else None
    if content is None or not image.isreg():
        raise ValueError(f"{image.name} or {label.name} is not a regular file")
    return int(content.read())
