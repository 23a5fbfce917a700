"""Write samples into files of limited size."""

import io
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import Part, ShardSplit, TokenSplit
from training.data.prepare.target import part_of
from training.data.shards import LABEL, scan


class ShardWriter:
    """Tar files PREFIX-00000.tar and so on, as WebDataset reads them, and their index.

    The same images give the same bytes: no time and no user is in them.
    """

    def __init__(self, folder: Path, prefix: str, limit: int) -> None:
        self._folder, self._prefix, self._limit = folder, prefix, limit
        self._parts: list[Part] = []
        self._index = [np.empty((0, 4), np.int64)]
        self._shard: tarfile.TarFile | None = None
        self.count = 0

    def add(self, image: bytes, extension: str, label: int) -> None:
        """One more sample. Raises OSError."""
        if self._shard and _ended(self._shard.offset, len(image)) > self._limit:
            self._end_shard()
        if self._shard is None:
            path = self._folder / f"{self._prefix}-{len(self._parts):05}.tar"
            self._shard = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        for name, content in ((extension, image), (LABEL, b"%d" % label)):
            member = tarfile.TarInfo(f"{self.count:09}.{name}")
            member.size = len(content)
            self._shard.addfile(member, io.BytesIO(content))
        self.count += 1

    def close(self) -> ShardSplit:
        """End the last shard and write the index. Raises OSError."""
        self._end_shard()
        path = self._folder / f"{self._prefix}-index.npy"
        np.save(path, np.concatenate(self._index), allow_pickle=False)
        return ShardSplit(parts=tuple(self._parts), index=part_of(path, self.count))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """After a failure a file is open still; the caller throws away what was written."""
        if self._shard is not None and self._shard.fileobj is not None:
            self._shard.fileobj.close()

    def _end_shard(self) -> None:
        if self._shard is None:
            return
        self._shard.close()
        path, self._shard = Path(str(self._shard.name)), None
        rows = scan(path, len(self._parts))
        self._index.append(rows)
        self._parts.append(part_of(path, len(rows)))


def _ended(offset: int, image: int) -> int:
    """Bytes of a shard that ends after one more image: with its header, a label, and the end."""
    blocks = -(-image // tarfile.BLOCKSIZE) + 5
    return -(-(offset + blocks * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


class TokenWriter:
    """Files PREFIX-00000.bin and so on of at most `limit` bytes."""

    def __init__(self, folder: Path, prefix: str, dtype: np.dtype[Any], limit: int) -> None:
        self._folder, self._prefix, self._dtype = folder, prefix, dtype
        self._room = max(limit // dtype.itemsize, 1)
        self._parts: list[Part] = []
        self._stream: BinaryIO | None = None
        self._written = 0
        self.count = 0

    def add(self, tokens: NDArray[Any]) -> None:
        """Tokens that follow those before. Raises OSError."""
        while len(tokens):
            if self._stream is None:
                path = self._folder / f"{self._prefix}-{len(self._parts):05}.bin"
                self._stream, self._written = path.open("wb"), 0
            now = tokens[: self._room - self._written]
            self._stream.write(now.astype(self._dtype).tobytes())
            self._written += len(now)
            self.count += len(now)
            tokens = tokens[len(now) :]
            if self._written == self._room:
                self._end_file()

    def close(self) -> TokenSplit:
        """End the last file. Raises OSError."""
        self._end_file()
        return TokenSplit(parts=tuple(self._parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """After a failure a file is open still; the caller throws away what was written."""
        if self._stream is not None:
            self._stream.close()

    def _end_file(self) -> None:
        if self._stream is None:
            return
        self._stream.close()
        path, self._stream = Path(self._stream.name), None
        self._parts.append(part_of(path, self._written))
