"""The base images: their names, shared layers and failed builds."""

import io
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import DevclusterError
from devcluster.images import base_image, torch_cpu
from devcluster.images.base_image import PYTORCH, Base, write_difference
from devcluster.images.catalog import BASES, MPI, NOTEBOOK, RAY, SWEEPS, TENSORFLOW
from devcluster.images.oci import Layer
from tests.devcluster.conftest import Install

# The last argument is the path of Debian's tar file, to which a file per package is written. uv
# writes a module to its target.
MMDEBSTRAP = """echo debian >> {calls}
for each; do case "$each" in --include=*) packages=${{each#--include=}} ;; esac; done
root=$(mktemp -d)
for name in $(echo "$packages" | tr , ' '); do echo "$name" > "$root/$name"; done
touch -d @1 "$root"/*; tar -C "$root" -cf "$each" .; rm -r "$root"
"""
UV = """echo uv >> {calls}
for each; do case "$each" in --target=*) folder=${{each#--target=}} ;; esac; done
mkdir -p "$folder/bin" "$folder/share"; echo "$*" > "$folder/module.py"
touch "$folder/share/data"
printf '#!/somewhere/python\nimport sys\n' > "$folder/bin/program"
"""


@pytest.fixture
def base(tmp_path: Path) -> Base:
    files = (tmp_path / "workload.txt", tmp_path / "cpu-image.txt")
    for file in files:
        file.write_text("torch==2.15.0\n")
    return Base("pytorch-cpu:2.15.0", files)


@pytest.mark.parametrize("each", BASES, ids=lambda each: each.reference)
def test_requirements_of_every_base_image_exist_and_are_pinned(each: Base) -> None:
    assert all("==" in file.read_text() for file in each.requirements)


def test_image_name_is_stable_without_changes(base: Base) -> None:
    assert base.name == base.name
    name, _, key = base.name.rpartition("-")
    assert (name, len(key)) == ("pytorch-cpu", 12)


def test_image_name_changes_with_added_and_removed_packages(base: Base) -> None:
    others = [replace(base, added=("openssh-server",)), replace(base, headers=("clang",))]
    assert len({base.name, *(other.name for other in others)}) == 3


@pytest.mark.parametrize("which", [0, 1])
def test_image_name_changes_with_every_requirements_file(base: Base, which: int) -> None:
    before = base.name
    base.requirements[which].write_text("torch==2.15.1\n")
    assert base.name != before


def test_image_name_changes_if_a_requirement_moves_to_another_file(base: Base) -> None:
    base.requirements[0].write_text("ab")
    base.requirements[1].write_text("c")
    before = base.name
    base.requirements[0].write_text("a")
    base.requirements[1].write_text("bc")
    assert base.name != before


def test_other_base_images_add_one_layer_to_the_pytorch_image(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_cpu, "cut", lambda _: None)
    calls, log = tmp_path / "calls", tmp_path / "log"
    install("mmdebstrap", MMDEBSTRAP.format(calls=calls))
    uv = install("uv", UV.format(calls=calls))
    install("pigz", 'for file; do :; done; exec gzip -n -c "$file"')
    made: dict[Base, list[Layer]] = {}
    outdated = [tmp_path / f"pytorch-cpu-{'0' * 12}", tmp_path / f"tensorflow-cpu-{'f' * 12}"]
    for folder in outdated:
        folder.mkdir()
    for each in BASES:
        calls.write_text("")
        made[each] = base_image.build(each, tmp_path, uv, log).layers()
        what = {PYTORCH: ["debian", "uv"], MPI: ["debian"]}.get(each, ["uv"])
        assert sorted(calls.read_text().split()) == what
    digests = {each: [layer.diff_id for layer in layers] for each, layers in made.items()}
    assert not any(folder.exists() for folder in outdated)
    root, site = digests[PYTORCH]
    for each in (MPI, RAY, SWEEPS, NOTEBOOK):
        assert digests[each][:-1] == [root, site]
    assert digests[TENSORFLOW][0] == root
    assert digests[TENSORFLOW][1] != site
    with tarfile.open(made[RAY][-1].file) as added:
        script = added.extractfile(f"{base_image.SITE}/bin/program")
        assert script is not None
        assert script.read() == b"#!/usr/bin/python3\nimport sys\n"
        assert "usr/local/share/data" in added.getnames()
    with tarfile.open(made[MPI][-1].file) as added:
        assert {name.removeprefix("./") for name in added.getnames()} == set(MPI.added)


def test_failed_package_installation_also_stops_the_debian_build(
    tmp_path: Path, install: Install
) -> None:
    images, log = tmp_path / "images", tmp_path / "log"
    install("mmdebstrap", "exec sleep 600")
    uv = install("uv", "echo no such version; exit 1")
    began = time.monotonic()
    with pytest.raises(DevclusterError, match=f"{PYTORCH.reference} failed.*see {log}"):
        base_image.build(PYTORCH, images, uv, log)
    assert time.monotonic() - began < 300
    assert "no such version" in log.read_text()
    assert list(images.iterdir()) == []


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
