"""Conversion of text files to token files.

Texts are whole files, lines of JSON Lines files, or rows of Parquet files.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import TokensManifest, write_manifest
from training.data.prepare.output import TokenWriter, finish_interrupted, new_dataset, part_of
from training.data.progress import Progress, Report
from training.data.samples import DataError, read_error, require_readable, visible_files
from training.data.text import BYTE_VOCABULARY, DTYPES, train_length
from workload.files import is_file

TEXT_SUFFIX: Final = ".txt"
"""Suffix of files that contain one text each."""
_ROWS_AT_A_TIME: Final = 256
MIN_PIECE_BYTES: Final = 2**18
"""Minimum number of bytes to encode at a time, extended to the end of a line."""
TOKENIZER_FILE: Final = "tokenizer.json"


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

    A text is a complete *.txt file, or the value of `field` in a *.jsonl line or a *.parquet row.
    Raise DataError if the package that reads Parquet is not installed, or if network storage is
    unavailable.
    """
    try:
        yield from _READERS[path.suffix](path, field)
    except OSError as error:
        require_readable(path, error)
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


@dataclass(frozen=True)
class Encoder:
    """Encoder for UTF-8 text.

    `content` is the content of tokenizer.json; it is empty if each byte is a token. `end` contains
    the end-of-text token, if there is one.
    """

    encode: Callable[[bytes], NDArray[Any]]
    vocabulary: int
    content: bytes = b""
    end: tuple[int, ...] = ()


def bytes_encoder() -> Encoder:
    """Return an encoder with one token per byte."""
    return Encoder(lambda text: np.frombuffer(text, np.uint8), BYTE_VOCABULARY)


def tokenizer_encoder(path: Path, end: str | None = None) -> Encoder:
    """Return an encoder for a tokenizer.json of the `tokenizers` package.

    `end` is the token to append to every text. Raise DataError if the file or the token is invalid,
    or if the package is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DataError(
            "--tokenizer needs a package that is not installed: pip install tokenizers"
        ) from None
    try:
        content = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(content)
    except OSError as error:
        raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
    except Exception as error:  # the package raises nothing more specific
        raise DataError(f"{path} is not a valid tokenizer.json: {error}") from None
    # Some files set a maximum length for a model's inputs, which would truncate longer texts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Encode names of special tokens in a text, such as <|endoftext|>, as ordinary text.
    tokenizer.encode_special_tokens = True

    def encode(text: bytes) -> NDArray[Any]:
        ids = tokenizer.encode(text.decode(), add_special_tokens=False).ids
        return np.array(ids, np.uint32)

    numbers = tokenizer.get_vocab(with_added_tokens=True).values()
    number = None if end is None else tokenizer.token_to_id(end)
    if end is not None and number is None:
        raise DataError(f"--end-of-text {end} is not a token of {path}: use one of its tokens")
    return Encoder(
        encode, max(numbers, default=0) + 1, content, () if number is None else (number,)
    )


def prepare_text(
    directory: Path,
    target: Path,
    encoder: Encoder,
    *,
    field: str,
    held_out: float,
    minimum: int,
    limit: int,
    force: bool,
    settings: Mapping[str, str | int | float],
    report: Report,
) -> TokensManifest:
    """Write the tokens of all texts below `directory` (see `texts`) to `target`.

    The written files have at most `limit` bytes each. `held_out` is the share to hold out of
    each *.txt file (its end), of the *.jsonl lines and of the *.parquet rows. `field` names the
    field or column that contains the text. If an earlier run of the same command was interrupted
    while it published its files, publish only the remaining files, unless `force` is set. Raise
    DataError if there is no text for training or for the held-out set, or if `target` is not empty
    and `force` is false. After an error, `target` is unchanged.
    """
    done = None if force else finish_interrupted(target, directory)
    digest = hashlib.sha256(encoder.content).hexdigest() if encoder.content else None
    expected = (dict(settings), digest)
    if (
        isinstance(done, TokensManifest)
        and (done.settings, done.tokenizer and done.tokenizer.sha256) == expected
    ):
        return done
    paths = find(directory)
    dropped: Counter[str] = Counter()
    dtype: Literal["uint16", "uint32"] = "uint16" if encoder.vocabulary <= 2**16 else "uint32"
    with (
        new_dataset(target, force, directory) as unfinished,
        TokenWriter(unfinished, "train", DTYPES[dtype], limit) as train,
        TokenWriter(unfinished, "held-out", DTYPES[dtype], limit) as held_out_writer,
    ):
        texts = 0
        for text, is_file in _distinct_texts(paths, field, minimum, dropped, report):
            texts += 1
            cut = _held_out_offset(text, held_out, is_file)
            for writer, part in ((train, text[:cut]), (held_out_writer, text[cut:])):
                for piece in _pieces(part):
                    writer.add(encoder.encode(piece))
                if part and encoder.end:
                    writer.add(np.array(encoder.end, np.uint32))
        if not train.count or not held_out_writer.count:
            raise DataError(
                f"{directory} contains {train.count} training and {held_out_writer.count} held-out "
                f"tokens ({dropped.total()} of {texts + dropped.total()} texts were dropped): add "
                "text, or change --held-out, --min-bytes or --field"
            )
        tokenizer = None
        if encoder.content:
            (unfinished / TOKENIZER_FILE).write_bytes(encoder.content)
            tokenizer = part_of(unfinished / TOKENIZER_FILE, encoder.vocabulary)
        manifest = TokensManifest(
            dtype=dtype,
            vocabulary=encoder.vocabulary,
            tokenizer=tokenizer,
            train=train.close(),
            held_out=held_out_writer.close(),
            dropped=dict(dropped),
            settings=dict(settings),
        )
        write_manifest(unfinished, manifest)
    return manifest


def _held_out_offset(text: bytes, held_out: float, is_file: bool) -> int:
    """Return the offset at which the held-out part of a text begins.

    A line or row is held out completely or not at all, depending only on its digest.
    """
    if is_file:
        return _character_start(text, train_length(len(text), held_out))
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    return 0 if number < held_out * 2**64 else len(text)


def _distinct_texts(
    paths: list[Path], field: str, minimum: int, dropped: Counter[str], report: Report
) -> Iterator[tuple[bytes, bool]]:
    """Yield each distinct text that is valid UTF-8 and long enough, and whether it is a whole file.

    All other texts are counted as dropped.
    """
    seen: set[bytes] = set()
    sizes = {path: path.stat().st_size for path in paths}
    progress = Progress("bytes prepared", sum(sizes.values()), report)
    for path, size in sizes.items():
        is_file, done = path.suffix == TEXT_SUFFIX, 0
        for text in texts(path, field):
            # Estimate the progress in the file: a text is shorter than its JSON line, but may be
            # longer than its compressed Parquet row.
            step = min(len(text or b""), size - done)
            done += step
            progress.advance(step, f", {dropped.total():,} texts dropped")
            if text is None:
                dropped["unreadable"] += 1
            elif len(text) < minimum:
                dropped["too small"] += 1
            elif (digest := hashlib.sha256(text).digest()) in seen:
                dropped["duplicate"] += 1
            else:
                seen.add(digest)
                yield text, is_file
        progress.advance(size - done)


def _character_start(text: bytes, offset: int) -> int:
    """Return the last offset up to `offset` at which a UTF-8 character starts."""
    while 0 < offset < len(text) and text[offset] & 0b1100_0000 == 0b1000_0000:
        offset -= 1
    return offset


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield pieces of complete lines. Each piece but the last has at least `MIN_PIECE_BYTES` bytes.

    Tokenizers are slow on long input, so a text is not encoded as a whole.
    """
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + MIN_PIECE_BYTES) + 1 or len(text)
        yield text[start:end]
        start = end
