"""Looks whether a prepared data set is as it was made."""

from pathlib import Path

import numpy as np

from training.data.manifest import (
    Manifest,
    ShardsManifest,
    read_manifest,
    verify,
)
from training.data.progress import Tell
from training.data.samples import DataError
from training.data.shards import read_index, scan


def check(folder: Path, tell: Tell) -> Manifest:
    """Compare all files with the manifest, and the shards with their index.

    Raises DataError that names the first file which is damaged.
    """
    manifest = read_manifest(folder)
    verify(folder, manifest.parts(), True, tell)
    if isinstance(manifest, ShardsManifest):
        for split in (manifest.train, manifest.held_out):
            index = read_index(folder, split, len(manifest.classes))
            for number, part in enumerate(split.parts):
                rows = index[index[:, 0] == number]
                if not np.array_equal(rows, scan(folder / part.file, number)):
                    raise DataError(
                        f"{folder / split.index.file} is not the index of {part.file}: "
                        "prepare the data set anew"
                    )
    return manifest
