"""The layer of files that a larger root file system has in addition to a smaller one."""

import io
import tarfile
from pathlib import Path

from devcluster.images.base_image import write_difference


def root(file: Path, **content: str | tuple[str, int]) -> Path:
    """A compressed tar file of files by name; with a number, of another time."""
    with tarfile.open(file, "w:gz") as archive:
        folder = tarfile.TarInfo("etc")
        folder.type, folder.mtime = tarfile.DIRTYPE, len(content)
        archive.addfile(folder)
        for name, value in content.items():
            text, time = value if isinstance(value, tuple) else (value, 1)
            member = tarfile.TarInfo(f"etc/{name}")
            member.size, member.mtime = len(text), time
            archive.addfile(member, io.BytesIO(text.encode()))
    return file


def test_only_what_is_new_or_changed_is_in_the_layer(tmp_path: Path) -> None:
    smaller = root(tmp_path / "smaller", same="a", longer="b", later="c")
    larger = root(tmp_path / "larger", same="a", longer="bb", later=("d", 2), new="e")
    write_difference(larger, smaller, tmp_path / "layer")
    with tarfile.open(tmp_path / "layer") as layer:
        found = {m.name: layer.extractfile(m) for m in layer}
        assert {name: file.read() for name, file in found.items() if file} == {
            "etc/longer": b"bb",
            "etc/later": b"d",
            "etc/new": b"e",
        }
        assert set(found) == {"etc/longer", "etc/later", "etc/new"}


def test_owner_and_permissions_of_a_file_count(tmp_path: Path) -> None:
    smaller = root(tmp_path / "smaller", same="a")
    larger = tmp_path / "larger"
    with tarfile.open(larger, "w") as archive:
        member = tarfile.TarInfo("etc/same")
        member.size, member.mtime, member.uid = 1, 1, 10
        archive.addfile(member, io.BytesIO(b"a"))
    write_difference(larger, smaller, tmp_path / "layer")
    with tarfile.open(tmp_path / "layer") as layer:
        assert layer.getnames() == ["etc/same"]
