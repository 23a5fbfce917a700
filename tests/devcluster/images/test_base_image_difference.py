"""The layer with the files that a root file system adds to a smaller one."""

import io
import tarfile
from pathlib import Path

from devcluster.images.base_image import write_difference


def root(file: Path, **content: str | tuple[str, int]) -> Path:
    """A compressed tar file with files by name; a number sets another modification time."""
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


def test_layer_contains_only_new_and_changed_files(tmp_path: Path) -> None:
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


def test_changed_owner_or_permissions_put_a_file_into_the_layer(tmp_path: Path) -> None:
    smaller = root(tmp_path / "smaller", same="a")
    larger = tmp_path / "larger"
    with tarfile.open(larger, "w") as archive:
        member = tarfile.TarInfo("etc/same")
        member.size, member.mtime, member.uid = 1, 1, 10
        archive.addfile(member, io.BytesIO(b"a"))
    write_difference(larger, smaller, tmp_path / "layer")
    with tarfile.open(tmp_path / "layer") as layer:
        assert layer.getnames() == ["etc/same"]
