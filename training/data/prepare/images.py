"""Images into shards."""

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from training.data.manifest import ShardsManifest, write_manifest
from training.data.prepare.sources import Dropped, Source, distinct
from training.data.prepare.target import new_dataset
from training.data.prepare.writers import ShardWriter
from training.data.progress import Progress, Tell
from training.data.samples import DataError


def prepare_images(
    source: Source,
    target: Path,
    *,
    limit: int,
    force: bool,
    settings: Mapping[str, str | int | float],
    tell: Tell,
) -> ShardsManifest:
    """Write the images of `source` as shards of at most `limit` bytes into `target`.

    Raises DataError when nothing is left to train on or to hold out, or `target` is not empty;
    OSError. `target` is then as it was before.
    """
    dropped: Counter[str] = Counter()
    progress = Progress("images prepared", source.total, tell)
    with (
        new_dataset(target, force) as folder,
        ShardWriter(folder, "train", limit) as train,
        ShardWriter(folder, "held-out", limit) as held_out,
        warnings.catch_warnings(),
    ):
        # A small file that would fill the memory is no image.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for picture in distinct(source.pictures):
            if isinstance(picture, Dropped):
                dropped[picture.reason] += 1
            else:
                writer = held_out if picture.held_out else train
                writer.add(picture.content, "png", picture.label)
            progress.advance(1, f", {dropped.total():,} dropped")
        for writer, what in ((train, "to train on"), (held_out, "to hold out")):
            if not writer.count:
                raise DataError(
                    f"of {source.total} images none is left {what}, {told(dropped)} were dropped: "
                    "add images, or change --held-out or --min-size"
                )
        manifest = ShardsManifest(
            shape=source.shape,
            classes=source.classes,
            train=train.close(),
            held_out=held_out.close(),
            dropped=dict(dropped),
            settings=dict(settings),
        )
        write_manifest(folder, manifest)
    return manifest


def told(dropped: Mapping[str, int]) -> str:
    """Counts with their reasons."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    return counts or "0"
