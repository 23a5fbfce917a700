"""Text as files of tokens, made by `python -m training.data prepare text`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import TokensManifest, TokenSplit, read_manifest, verify
from training.data.progress import Tell
from training.data.samples import DataError, Dataset
from training.data.text import windows

DTYPES: Final[dict[str, np.dtype[Any]]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True)
class TokenFile:
    """`count` tokens in a file.

    It is mapped anew for every batch, which costs microseconds, so that nothing is open when
    processes fork and nothing but a name is pickled.
    """

    path: Path
    dtype: np.dtype[Any]
    count: int

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def __len__(self) -> int:
        return self.count

    def tokens(self) -> NDArray[Any]:
        """Memory mapped. Raises DataError when the file has become shorter or is gone."""
        try:
            return np.memmap(self.path, self.dtype, mode="r", shape=(self.count,))
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path} cannot be read any more: {error}") from None


def tokens(folder: Path, shape: tuple[int, ...] | None, digests: bool, tell: Tell) -> Dataset:
    """A prepared data set of tokens, after its files were verified. Raises DataError."""
    manifest = read_manifest(folder)
    if not isinstance(manifest, TokensManifest):
        raise DataError(f"{folder} holds {manifest.kind}: write this as dataset, or other data_dir")
    verify(folder, manifest.parts(), digests, tell)
    dtype = DTYPES[manifest.dtype]

    def files(split: TokenSplit) -> list[TokenFile]:
        return [TokenFile(folder / part.file, dtype, part.count) for part in split.parts]

    return windows(
        files(manifest.train), files(manifest.held_out), shape, manifest.vocabulary, folder
    )
