import errno
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.files import write_text
from training.data import DataError, load
from training.data.manifest import MANIFEST_FILE, TokensManifest, write_manifest
from training.data.prepare.output import TokenWriter
from training.data.samples import UnavailableError
from training.data.text import DTYPES, MemoryStream, Windows


def streams(sizes: list[int]) -> list[MemoryStream]:
    """Return streams whose token values are their positions."""
    ends = np.cumsum(sizes)
    return [
        MemoryStream(Path("text"), np.arange(end - size, end).astype(np.uint8))
        for size, end in zip(sizes, ends, strict=True)
    ]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    context=st.integers(1, 12),
    seed=st.integers(0, 9),
)
def test_every_window_of_every_stream_is_seen_once_per_epoch(
    sizes: list[int], context: int, seed: int
) -> None:
    windows = Windows(streams(sizes), context, outputs=256)
    order = windows.order(np.random.default_rng(seed))
    assert len(order) == len(windows)
    inputs, targets = windows.batch(order)
    assert inputs.shape == targets.shape == (len(windows), context)
    assert np.array_equal(inputs + 1, targets)
    tokens = sorted(inputs.ravel().tolist())
    begins = np.cumsum(sizes) - sizes
    assert tokens == [
        begin + offset
        for begin, size in zip(begins, sizes, strict=True)
        for offset in range(max(size - 1, 0) // context * context)
    ]


def test_end_of_every_visible_file_is_held_out(tmp_path: Path) -> None:
    hidden = {
        ".c.txt": 1000,
        ".ipynb_checkpoints/a.txt": 3000,
        "lost+found/a.txt": 3000,
        "deep/.snapshot/b.txt": 1000,
    }
    write_text(tmp_path / "text", {"a.txt": 3000, "deep/b.txt": 1000, "no.md": 5000} | hidden)
    data = load("text", tmp_path, (10,), seed=0)
    a, b = ((tmp_path / "text" / name).read_bytes() for name in ("a.txt", "deep/b.txt"))
    train, held_out = (
        part.batch(np.arange(len(part)))[0].astype(np.uint8).tobytes()
        for part in (data.train, data.held_out)
    )
    assert (a[:2700] + b[:900]).startswith(train)
    assert (a[2700:] + b[900:]).startswith(held_out)
    assert (len(data.train), len(data.held_out)) == (359, 39)
    assert (data.shape, data.outputs, data.classes, data.train.divisor) == ((10,), 256, (), 0)


def test_linked_directories_are_read_once(tmp_path: Path) -> None:
    write_text(tmp_path / "books", {"a.txt": 3000, "deep/b.txt": 1000})
    (tmp_path / "text").mkdir()
    (tmp_path / "text/linked").symlink_to(tmp_path / "books")
    (tmp_path / "books/deep/parent").symlink_to(tmp_path / "books")
    data = load("text", tmp_path, (10,), seed=0)
    assert (len(data.train), len(data.held_out)) == (359, 39)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, DataError), (errno.EIO, UnavailableError)]
)
def test_unreadable_directory_is_an_error(
    number: int, kind: type[DataError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "text", {"a.txt": 3000, "deep/b.txt": 1000})
    scan = os.scandir

    def fail(path: str) -> object:
        if Path(path).name == "deep":
            raise OSError(number, os.strerror(number), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(
        DataError, match=f"text/deep cannot be read: {os.strerror(number)}"
    ) as found:
        load("text", tmp_path, (10,), seed=0)
    assert found.type is kind


def test_samples_have_256_tokens_by_default(tmp_path: Path) -> None:
    write_text(tmp_path / "text", {"a.txt": 5000})
    assert load("text", tmp_path, None, seed=0).shape == (256,)


def test_pickled_samples_read_the_same_text(tmp_path: Path) -> None:
    write_text(tmp_path / "text", {"a.txt": 3000})
    train = load("text", tmp_path, (10,), seed=0).train
    sent = pickle.loads(pickle.dumps(train))  # noqa: S301
    some = np.array([3, 200])
    assert np.array_equal(sent.batch(some)[1], train.batch(some)[1])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, r"text has no \*.txt file"),
        ({"a.md": 900}, r"text has no \*.txt file"),
        ({"a.txt": 11}, "10 consecutive training tokens, but a sample of 10 needs 11"),
        ({"a.txt": 100}, "10 consecutive held-out tokens"),
        ({"a.txt": 0}, "0 consecutive training tokens"),
    ],
)
def test_too_little_text_is_rejected(sizes: dict[str, int], message: str, tmp_path: Path) -> None:
    write_text(tmp_path / "text", sizes)
    with pytest.raises(DataError, match=message):
        load("text", tmp_path, (10,), seed=0)


def test_error_names_the_unreadable_text_file(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/broken.txt").symlink_to("missing")
    with pytest.raises(DataError, match=r"broken.txt cannot be read: No such file or directory"):
        load("text", tmp_path, (10,), seed=0)


def test_token_outside_the_vocabulary_is_rejected() -> None:
    with pytest.raises(DataError, match="text has a token above 4"):
        Windows(streams([20]), 5, outputs=5).batch(np.array([1]))


def write_tokens(
    folder: Path, count: int, dtype: Literal["uint16", "uint32"] = "uint16", vocabulary: int = 1000
) -> None:
    """Write consecutive numbers as tokens, 40 per file."""
    folder.mkdir()
    splits = []
    for prefix, size in (("train", count), ("held-out", 40)):
        with TokenWriter(folder, prefix, DTYPES[dtype], 40 * DTYPES[dtype].itemsize) as writer:
            writer.add(np.arange(size) % vocabulary)
            splits.append(writer.close())
    write_manifest(
        folder,
        TokensManifest(dtype=dtype, vocabulary=vocabulary, train=splits[0], held_out=splits[1]),
    )


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_every_window_of_every_file_is_seen_once(
    dtype: Literal["uint16", "uint32"], tmp_path: Path
) -> None:
    vocabulary = 70_000 if dtype == "uint32" else 1000
    write_tokens(tmp_path / "tokens", 205, dtype, vocabulary)
    data = load("tokens", tmp_path, (8,), seed=0)
    assert (data.shape, data.outputs, data.classes, data.train.divisor) == ((8,), vocabulary, (), 0)
    assert (len(data.train), len(data.held_out)) == (20, 4)
    order = data.train.order(np.random.default_rng(0))
    inputs, targets = data.train.batch(order)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(inputs + 1, targets)
    assert sorted(inputs[:, 0]) == [
        40 * file + 8 * window for file in range(5) for window in range(4)
    ]


def test_pickled_samples_contain_file_names_instead_of_tokens(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", 100)
    held_out = load("tokens", tmp_path, (8,), seed=0).held_out
    some = np.array([3, 1])
    inputs, _ = held_out.batch(some)
    sent = pickle.dumps(held_out)
    assert np.arange(40, dtype="<u2").tobytes()[:20] not in sent
    assert np.array_equal(pickle.loads(sent).batch(some)[0], inputs)  # noqa: S301


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("train-00001.bin", lambda old: old[:-2], "is damaged: 78 bytes instead of 80"),
        ("train-00001.bin", lambda old: b"\xff\xff" + old[2:], "its sha256 differs from"),
        ("train-00001.bin", None, "cannot be read: No such file"),
        (MANIFEST_FILE, None, "is missing: create the data set with"),
        (MANIFEST_FILE, lambda old: old.replace(b'"uint16"', b'"uint32"'), "80 bytes, not 4 per"),
        (MANIFEST_FILE, lambda old: old.replace(b'"uint16"', b'"float64"'), "tokens.dtype"),
        (MANIFEST_FILE, lambda old: old.replace(b'"train-0000', b'"../rain-0000'), "tokens.train"),
    ],
)
def test_damage_is_detected_before_training(
    file: str, damage: Callable[[bytes], bytes] | None, message: str, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", 100)
    path = tmp_path / "tokens" / file
    path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("tokens", tmp_path, (8,), seed=0)
    assert str(path) in str(caught.value)


def test_damage_that_was_not_checked_is_reported_when_tokens_are_read(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", 100)
    path = tmp_path / "tokens/train-00000.bin"
    path.write_bytes(b"\xff\xff" + path.read_bytes()[2:])
    train = load("tokens", tmp_path, (8,), seed=0, verification=None).train
    with pytest.raises(DataError, match=r"train-00000.bin has a token above 999"):
        train.batch(np.array([0]))
    path.write_bytes(b"short")
    with pytest.raises(DataError, match=r"train-00000.bin can no longer be read"):
        train.batch(np.array([1]))


def test_a_context_longer_than_the_files_is_rejected(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", 100)
    with pytest.raises(DataError, match=r"40 consecutive training tokens, .* of 40 needs 41"):
        load("tokens", tmp_path, (40,), seed=0)


def test_another_type_of_data_set_is_rejected(tmp_path: Path) -> None:
    write_tokens(tmp_path / "shards", 100)
    assert json.loads((tmp_path / "shards/manifest.json").read_text())["kind"] == "tokens"
    with pytest.raises(DataError, match="contains tokens: set dataset to tokens"):
        load("shards", tmp_path, None, seed=0)
