"""Conversion of labeled images to shards."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from training.data import load
from training.data.manifest import ShardsManifest, write_manifest
from training.data.prepare.output import ShardWriter, finish_interrupted, new_dataset
from training.data.progress import Progress, Report
from training.data.samples import (
    DataError,
    Samples,
    is_visible,
    read_error,
    require_readable,
    visible_files,
)
from training.settings import DatasetName
from workload.files import is_directory, is_file, is_utf8

ImageShape = tuple[Literal[1, 3], int, int]

ORDER_SEED: Final = 0
"""Seed of the random order of the images, which mixes the classes in every shard."""
IMAGES_IN_MEMORY: Final = 512
"""Number of images in memory at a time."""


@dataclass(frozen=True)
class Picture:
    """An image as it is stored: a PNG file with the image shape of the data set."""

    content: bytes
    digest: bytes
    label: int
    held_out: bool


@dataclass(frozen=True)
class Dropped:
    """An image that is not stored, and the reason."""

    reason: str


@dataclass(frozen=True)
class Source:
    """Images to prepare; `pictures` can be iterated only once."""

    directory: Path
    classes: tuple[str, ...]
    shape: ImageShape
    total: int
    pictures: Iterator[Picture | Dropped]


def from_directory(
    directory: Path, shape: ImageShape, minimum: int, held_out: float, workers: int
) -> Source:
    """Read images from one directory per class, and crop and scale them to `shape`.

    The pixels of an image determine whether it is held out, so additional images do not change the
    split of existing ones. Raise DataError if a class has no images.
    """
    try:
        entries = [path for path in directory.iterdir() if is_visible(path.name)]
        classes = tuple(sorted(path.name for path in entries if is_directory(path)))
        unclassified = sum(_is_image_file(path) for path in entries)
        files = [
            (path, label)
            for label, name in enumerate(classes)
            for path in visible_files(directory / name)
            if is_file(path)
        ]
    except OSError as error:
        raise read_error(
            f"{error.filename or directory} cannot be read: {error.strerror}", error
        ) from None
    for name in classes:
        # The manifest contains the class names.
        if not is_utf8(name):
            raise DataError(
                f"{directory} has a directory {name!r} whose name is not UTF-8: rename it"
            )
    if not files:
        raise DataError(
            f"{directory} has no images: it must contain one directory of images per class"
        )
    if empty := _missing_classes(classes, {label for _, label in files}):
        raise DataError(
            f"{directory} has no images of {empty}: add images, or remove the directories"
        )

    def picture(file: tuple[Path, int]) -> Picture | Dropped:
        return _from_file(*file, shape, minimum, held_out)

    def pictures() -> Iterator[Picture | Dropped]:
        yield from [Dropped("not in a class directory")] * unclassified
        order = np.random.default_rng(ORDER_SEED).permutation(len(files))
        with ThreadPoolExecutor(workers) as pool:
            for start in range(0, len(order), IMAGES_IN_MEMORY):
                yield from pool.map(
                    picture, [files[n] for n in order[start : start + IMAGES_IN_MEMORY]]
                )

    return Source(directory, classes, shape, unclassified + len(files), pictures())


def from_dataset(name: DatasetName, data_dir: Path) -> Source:
    """Read all images of a built-in data set, keeping its split."""
    data = load(name, data_dir, None, seed=0)
    channels, height, width = data.shape
    shape: ImageShape = (1 if channels == 1 else 3, height, width)

    def pictures() -> Iterator[Picture]:
        # Held-out images come first, so a training image that equals one of them is dropped.
        for samples, held_out in ((data.held_out, True), (data.train, False)):
            order = np.random.default_rng(ORDER_SEED).permutation(len(samples))
            for start in range(0, len(order), IMAGES_IN_MEMORY):
                yield from _from_samples(samples, order[start : start + IMAGES_IN_MEMORY], held_out)

    total = len(data.train) + len(data.held_out)
    return Source(data_dir, data.classes, shape, total, pictures())


def _is_image_file(path: Path) -> bool:
    return path.suffix.lower() in Image.registered_extensions() and is_file(path)


def _missing_classes(classes: Sequence[str], labels: Collection[int]) -> str:
    """Return the quoted names of the classes that no label refers to."""
    return ", ".join(repr(name) for label, name in enumerate(classes) if label not in labels)


def _from_samples(
    samples: Samples, indices: NDArray[np.int64], held_out: bool
) -> Iterator[Picture]:
    pixels, labels = samples.batch(indices)
    scaled = (pixels.astype(np.uint16) * 255 // samples.divisor).astype(np.uint8)
    for image, label in zip(scaled.transpose(0, 2, 3, 1), labels.tolist(), strict=True):
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        yield Picture(_encode_png(picture), _digest(picture), label, held_out)


def _from_file(
    path: Path, label: int, shape: ImageShape, minimum: int, held_out: float
) -> Picture | Dropped:
    channels, height, width = shape
    try:
        with Image.open(path) as image:
            if min(image.size) < minimum:
                return Dropped("too small")
            image.load()
            image.getexif()
            # Keep only the orientation, which `getexif` has cached. Otherwise, `exif_transpose`
            # would encode all EXIF data again and fail if any of it is invalid, and color profiles
            # would be stored.
            image.info.clear()
            upright = _to_8_bits(ImageOps.exif_transpose(image), image.format)
            upright = upright.convert("L" if channels == 1 else "RGB")
    # Decoders may raise any exception for a damaged file. Such files are counted and reported.
    except Exception as error:
        require_readable(path, error)
        return Dropped("unreadable")
    picture = ImageOps.fit(upright, (width, height), Image.Resampling.BICUBIC)
    digest = _digest(picture)
    share = int.from_bytes(digest[:8], "big") / 2**64
    return Picture(_encode_png(picture), digest, label, share < held_out)


def _to_8_bits(image: Image.Image, file_format: str | None) -> Image.Image:
    """Reduce 16-bit gray values to 8 bits, because Pillow's `convert` would clip them.

    Raise ValueError for 32-bit channels, which have no defined range.
    """
    # Pillow reads 16-bit PGM files as 32-bit images.
    has_16_bits = image.mode.startswith("I;16") or (file_format, image.mode) == ("PPM", "I")
    if image.mode in ("I", "F") and not has_16_bits:
        raise ValueError("the range of the values is unknown")
    if has_16_bits:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image


def _digest(picture: Image.Image) -> bytes:
    return hashlib.sha256(picture.tobytes()).digest()


def _encode_png(picture: Image.Image) -> bytes:
    stream = BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def distinct(pictures: Iterator[Picture | Dropped]) -> Iterator[Picture | Dropped]:
    """Yield the pictures, with each duplicate (equal pixels) replaced by `Dropped`."""
    seen: set[bytes] = set()
    for picture in pictures:
        if isinstance(picture, Picture):
            if picture.digest in seen:
                yield Dropped("duplicate")
                continue
            seen.add(picture.digest)
        yield picture


def prepare_images(
    source: Source,
    target: Path,
    *,
    limit: int,
    force: bool,
    settings: Mapping[str, str | int | float],
    report: Report,
) -> ShardsManifest:
    """Write the images of `source` as shards of at most `limit` bytes to `target`.

    If an earlier run of the same command was interrupted while it published its files, publish only
    the remaining files, unless `force` is set. Raise DataError if there are no images for training
    or for the held-out set, or if `target` is not empty and `force` is false. After an error,
    `target` is unchanged.
    """
    done = None if force else finish_interrupted(target, source.directory)
    expected = (dict(settings), source.shape, source.classes)
    if isinstance(done, ShardsManifest) and (done.settings, done.shape, done.classes) == expected:
        return done
    dropped: Counter[str] = Counter()
    labels: set[int] = set()
    progress = Progress("images prepared", source.total, report)
    with (
        new_dataset(target, force, source.directory) as directory,
        ShardWriter(directory, "train", limit) as train,
        ShardWriter(directory, "held-out", limit) as held_out,
        warnings.catch_warnings(),
    ):
        # Reject small files that would exhaust the memory when they are decoded.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for picture in distinct(source.pictures):
            if isinstance(picture, Dropped):
                dropped[picture.reason] += 1
            else:
                writer = held_out if picture.held_out else train
                writer.add(picture.content, "png", picture.label)
                labels.add(picture.label)
            progress.advance(1, f", {dropped.total():,} dropped")
        for writer, use in ((train, "training"), (held_out, "the held-out set")):
            if not writer.count:
                raise DataError(
                    f"no images for {use} (read: {source.total}, dropped: "
                    f"{_format_counts(dropped)}): add images, or change --held-out or --min-size"
                )
        if empty := _missing_classes(source.classes, labels):
            raise DataError(
                f"all images of {empty} were dropped (total over all classes: "
                f"{_format_counts(dropped)}): add images, change --min-size, or remove the "
                "directories"
            )
        manifest = ShardsManifest(
            shape=source.shape,
            classes=source.classes,
            train=train.close(),
            held_out=held_out.close(),
            dropped=dict(dropped),
            settings=dict(settings),
        )
        write_manifest(directory, manifest)
    return manifest


def _format_counts(dropped: Mapping[str, int]) -> str:
    """Format the counts with their reasons."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    return counts or "0"
