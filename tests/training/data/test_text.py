import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.files import write_text
from training.data import DataError, load
from training.data.samples import UnavailableError
from training.data.text import MemoryStream, Windows


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
