from pathlib import Path
from typing import BinaryIO

import pytest

from workload.files import sync_files, write_atomically


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"new, but not all of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_with_a_dangling_link_is_flushed(tmp_path: Path) -> None:
    (tmp_path / "last").symlink_to("step-9")
    sync_files(tmp_path)
