"""Texts in Parquet files. The tests of `prepare text` cover lines and whole files."""

import errno
import sys
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.conftest import make_unavailable
from training.data.__main__ import main
from training.data.prepare.documents import find, texts
from training.data.samples import DataError, UnavailableError


def write(path: Path, **columns: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    for name in (".txt", "a.txt", ".b.txt", "..2026/a.txt"):
        (tmp_path / name).write_text("a text")
    assert find(tmp_path) == [tmp_path / "a.txt"]


def test_missing_directory_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="missing does not exist: pass a directory of texts as --folder"
    ):
        find(tmp_path / "missing")


def test_every_row_of_the_column_is_a_text(tmp_path: Path) -> None:
    rows = [f"text {number} é" for number in range(1000)]
    path = write(tmp_path / "a.parquet", id=list(range(1000)), body=rows)
    assert [text.decode() for text in texts(path, "body") if text] == rows


def test_rows_without_text_are_unreadable(tmp_path: Path) -> None:
    invalid_utf8 = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    column = pa.concat_arrays([pa.array(["first", None]), invalid_utf8, pa.array(["last"])])
    assert [*texts(write(tmp_path / "a.parquet", text=column), "text")] == [
        b"first",
        None,
        None,
        b"last",
    ]
    assert [*texts(write(tmp_path / "b.parquet", text=[1, 2]), "text")] == [None, None]


@pytest.mark.parametrize("cut", [0, 3, 200])
def test_damaged_file_counts_as_one_unreadable_text(cut: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", text=["x" * 90] * 300)
    path.write_bytes(path.read_bytes()[:cut])
    assert [*texts(path, "text")] == [None]


def test_unavailable_storage_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}')
    monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(UnavailableError, match=r"a\.jsonl cannot be read: Input/output error"):
        list(texts(path, "text"))


def test_text_that_cannot_be_inspected_is_not_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("a text")
    make_unavailable(tmp_path / "b.txt", monkeypatch)
    with pytest.raises(UnavailableError, match=r"b\.txt cannot be read: Stale file handle"):
        find(tmp_path)


def test_file_without_the_text_column_counts_as_one_unreadable_text(tmp_path: Path) -> None:
    assert [*texts(write(tmp_path / "a.parquet", body=["x"]), "text")] == [None]


def test_rows_are_prepared_in_the_same_way_as_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "text/a.parquet", text=[f"{number} {'word ' * 20}" for number in range(200)])
    command = ["prepare", "text", f"--folder={tmp_path}/text", f"{tmp_path}/tokens"]
    assert main(command) == 0
    lines = capsys.readouterr().out.replace(",", "").splitlines()
    train, held_out = (int(line.split()[1]) for line in lines)
    assert train + held_out == sum(len(f"{number} {'word ' * 20}") for number in range(200))
    assert 5 * 102 <= held_out <= 40 * 102


def test_error_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="is not installed: pip install pyarrow"):
        list(texts(tmp_path / "a.parquet", "text"))
