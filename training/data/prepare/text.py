"""Text files into files of tokens."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import TokensManifest, write_manifest
from training.data.prepare.target import new_dataset, part_of
from training.data.prepare.writers import TokenWriter
from training.data.progress import Progress, Tell
from training.data.samples import DataError
from training.data.text import BYTES, train_length
from training.data.tokens import DTYPES

PIECE: Final = 2**18
"""Bytes that are encoded at a time: whole lines, a little more than this."""
TOKENIZER_FILE: Final = "tokenizer.json"


@dataclass(frozen=True)
class Encoder:
    """Makes tokens of UTF-8; `content` is that of tokenizer.json, empty where tokens are bytes."""

    encode: Callable[[bytes], NDArray[Any]]
    vocabulary: int
    content: bytes = b""


def bytes_encoder() -> Encoder:
    """Every byte is a token."""
    return Encoder(lambda text: np.frombuffer(text, np.uint8), BYTES)


def tokenizer_encoder(path: Path) -> Encoder:
    """A tokenizer of Hugging Face's tokenizers package. Raises DataError."""
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
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # the package raises nothing more special
        raise DataError(f"{path} is no tokenizer.json: {error}") from None

    def encode(text: bytes) -> NDArray[Any]:
        ids = tokenizer.encode(text.decode(), add_special_tokens=False).ids
        return np.array(ids, np.uint32)

    numbers = tokenizer.get_vocab(with_added_tokens=True).values()
    return Encoder(encode, max(numbers, default=0) + 1, content)


def prepare_text(
    folder: Path,
    target: Path,
    encoder: Encoder,
    *,
    held_out: float,
    smallest: int,
    limit: int,
    force: bool,
    settings: Mapping[str, str | int | float],
    tell: Tell,
) -> TokensManifest:
    """Write all *.txt below `folder` as tokens into `target`, in files of at most `limit` bytes.

    The last share `held_out` of every text is held out. Raises DataError when there is nothing to
    train on, or `target` is not empty; OSError. `target` is then as it was before.
    """
    paths = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not paths:
        raise DataError(f"{folder} has no *.txt file")
    dropped: Counter[str] = Counter()
    dtype: Literal["uint16", "uint32"] = "uint16" if encoder.vocabulary <= 2**16 else "uint32"
    with (
        new_dataset(target, force) as unfinished,
        TokenWriter(unfinished, "train", DTYPES[dtype], limit) as train,
        TokenWriter(unfinished, "held-out", DTYPES[dtype], limit) as kept,
    ):
        for text in _cleaned(paths, smallest, dropped, tell):
            cut = _letter_at(text, train_length(len(text), held_out))
            for writer, part in ((train, text[:cut]), (kept, text[cut:])):
                for piece in _pieces(part):
                    writer.add(encoder.encode(piece))
        if not train.count or not kept.count:
            raise DataError(
                f"{folder} has {train.count} tokens to train on and {kept.count} to hold out; of "
                f"{len(paths)} files {dropped.total()} were dropped: add text, or change "
                "--held-out or --min-bytes"
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
            held_out=kept.close(),
            dropped=dict(dropped),
            settings=dict(settings),
        )
        write_manifest(unfinished, manifest)
    return manifest


def _cleaned(
    paths: list[Path], smallest: int, dropped: Counter[str], tell: Tell
) -> Iterator[bytes]:
    """The texts that are UTF-8, long enough, and unlike all before; the others are counted."""
    seen: set[bytes] = set()
    progress = Progress("texts prepared", len(paths), tell)
    for path in paths:
        progress.advance(1, f", {dropped.total():,} dropped")
        try:
            text = path.read_bytes()
            text.decode()
        except (OSError, UnicodeDecodeError):
            dropped["unreadable"] += 1
            continue
        digest = hashlib.sha256(text).digest()
        if len(text) < smallest:
            dropped["too small"] += 1
        elif digest in seen:
            dropped["duplicate"] += 1
        else:
            seen.add(digest)
            yield text


def _letter_at(text: bytes, place: int) -> int:
    """The same place, or a little before it, where a letter of UTF-8 begins."""
    while 0 < place < len(text) and text[place] & 0b1100_0000 == 0b1000_0000:
        place -= 1
    return place


def _pieces(text: bytes) -> Iterator[bytes]:
    """Whole lines, as many as have `PIECE` bytes: tokenizers get slow with more at once."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end
