"""Readers for text documents: whole files, lines of JSON Lines files, or rows of Parquet files."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from training.data.samples import DataError, read_error, require_available, visible_files
from workload.files import is_file

TEXT_SUFFIX: Final = ".txt"
"""Suffix of files that contain one text each."""
_ROWS_AT_A_TIME: Final = 256


def find(directory: Path) -> list[Path]:
    """Return the visible text files below a directory, sorted; raise DataError if none exist."""
    found = visible_files(directory)
    try:
        paths = [path for path in found if path.suffix in _READERS and is_file(path)]
    except OSError as error:
        raise read_error(f"{error.filename} cannot be read: {error.strerror}", error) from None
    if not paths:
        if not directory.exists():
            raise DataError(f"{directory} does not exist: pass a directory of texts as --folder")
        *others, last = (f"*{suffix}" for suffix in _READERS)
        raise DataError(f"{directory} has no {', '.join(others)} or {last} file")
    return paths


def texts(path: Path, field: str) -> Iterator[bytes | None]:
    """Yield the texts of a file as UTF-8 bytes, and None for each text that cannot be read.

    A text is a complete *.txt file, the field `field` of a *.jsonl line, or the column `field` of a
    *.parquet row. Raise DataError if the package that reads Parquet is not installed, or if network
    storage is unavailable.
    """
    try:
        yield from _READERS[path.suffix](path, field)
    except OSError as error:
        require_available(path, error)
        yield None


def _read_text(path: Path, field: str) -> Iterator[bytes | None]:
    text = path.read_bytes()
    try:
        text.decode()
    except UnicodeDecodeError:
        yield None
    else:
        yield text


def _read_lines(path: Path, field: str) -> Iterator[bytes | None]:
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield _field_of(line, field)


def _field_of(line: bytes, field: str) -> bytes | None:
    try:
        content = json.loads(line)
        return _encode(content.get(field)) if isinstance(content, dict) else None
    except (ValueError, RecursionError):
        return None


def _read_rows(path: Path, field: str) -> Iterator[bytes | None]:
    """Yield the texts of a Parquet file; yield None once if it is invalid or lacks the column."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{path}: Parquet needs a package that is not installed: pip install pyarrow"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                yield None
                return
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=[field]):
                yield from map(_value, batch.column(0))
    except (pyarrow.ArrowException, ValueError):
        yield None


def _value(cell: Any) -> bytes | None:
    try:
        return _encode(cell.as_py())
    except UnicodeDecodeError:
        return None


def _encode(text: object) -> bytes | None:
    return text.encode() if isinstance(text, str) else None


_READERS: Final[Mapping[str, Callable[[Path, str], Iterator[bytes | None]]]] = {
    TEXT_SUFFIX: _read_text,
    ".jsonl": _read_lines,
    ".parquet": _read_rows,
}
