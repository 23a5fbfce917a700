import errno
import json
import os
import sys
from itertools import groupby
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.conftest import make_unavailable
from tests.training.data.files import write_text
from tests.unicode import ALPHABET
from training.data import check_prepared, load
from training.data.__main__ import main
from training.data.manifest import read_manifest
from training.data.prepare import output, text
from training.data.prepare.text import _character_start, _pieces, find, texts, tokenizer_encoder
from training.data.samples import DataError, UnavailableError
from workload import exit_codes


def prepare(folder: Path, target: Path, *options: str) -> int:
    return main(["prepare", "text", f"--folder={folder}", *options, str(target)])


def test_byte_tokens_have_the_same_samples_as_the_text(tmp_path: Path) -> None:
    write_text(tmp_path / "text", {"a.txt": 3000, "deep/b.txt": 1000})
    assert prepare(tmp_path / "text", tmp_path / "tokens") == 0
    packed, plain = (load(name, tmp_path, (10,), seed=0) for name in ("tokens", "text"))
    assert packed.outputs == plain.outputs == 256
    for token_samples, text_samples in (
        (packed.train, plain.train),
        (packed.held_out, plain.held_out),
    ):
        assert len(token_samples) == len(text_samples)
        indices = np.arange(len(token_samples))
        assert np.array_equal(token_samples.batch(indices)[0], text_samples.batch(indices)[0])
        assert np.array_equal(token_samples.batch(indices)[1], text_samples.batch(indices)[1])


def test_unusable_files_are_skipped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "text"
    write_text(folder, {"a.txt": 1000, "short.txt": 63})
    (folder / "b.txt").write_bytes((folder / "a.txt").read_bytes())
    (folder / "latin.txt").write_bytes("é".encode("latin-1") * 100)
    assert prepare(folder, tmp_path / "tokens") == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/tokens: 900 training tokens in 1 file\n"
        f"{tmp_path}/tokens: 100 held-out tokens in 1 file\n"
        "dropped: 1 duplicate\ndropped: 1 too small\ndropped: 1 unreadable\n"
    )


@pytest.mark.parametrize(
    ("folder", "options", "expected"),
    [
        ("text", [], exit_codes.DONE),
        ("text", ["--force"], exit_codes.DONE),
        ("text", ["--held-out=0.2"], exit_codes.BAD_INPUT),
        ("other", [], exit_codes.BAD_INPUT),
    ],
)
def test_preparation_killed_while_publishing_can_be_repeated(
    folder: str,
    options: list[str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        pass

    def raise_killed(_folder: Path) -> None:
        raise Killed

    write_text(tmp_path / "text", {"a.txt": 1000})
    monkeypatch.setattr(output, "sync_folder", raise_killed)
    with pytest.raises(Killed):
        prepare(tmp_path / "text", tmp_path / "tokens")
    monkeypatch.undo()
    write_text(tmp_path / "other", {"a.txt": 2000})
    assert prepare(tmp_path / folder, tmp_path / "tokens", *options) == expected
    assert check_prepared(tmp_path / "tokens", print).settings["held_out"] == 0.1
    assert not (tmp_path / "tokens" / output.UNFINISHED).exists()


def test_files_have_a_limited_size_and_contain_all_tokens(tmp_path: Path) -> None:
    write_text(tmp_path / "text", {"a.txt": 1_500_000})
    assert prepare(tmp_path / "text", tmp_path / "tokens", "--max-mib=1") == 0
    manifest = check_prepared(tmp_path / "tokens", print)
    files = [tmp_path / "tokens" / part.file for part in manifest.train.parts]
    assert [path.stat().st_size for path in files] == [2**20, 2**20, 1_350_000 * 2 - 2**21]
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in files])
    content = (tmp_path / "text/a.txt").read_bytes()
    assert tokens.astype(np.uint8).tobytes() == content[:1_350_000]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer trained on a few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(["the cat and the dog and the cat"] * 9, trainer)
    bpe.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_tokenizer_is_used_and_stored_with_the_tokens(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    monkeypatch.setattr(text, "MIN_PIECE_BYTES", 50)
    (tmp_path / "text").mkdir()
    content = "the dog and the cäät\n" * 40
    (tmp_path / "text/a.txt").write_text(content)
    assert prepare(tmp_path / "text", tmp_path / "tokens", f"--tokenizer={tokenizer}") == 0
    manifest = read_manifest(tmp_path / "tokens")
    assert manifest.kind == "tokens"
    stored = Tokenizer.from_file(str(tmp_path / "tokens/tokenizer.json"))
    assert manifest.vocabulary == stored.get_vocab_size() == load(
        "tokens", tmp_path, (8,), seed=0
    ).outputs  # fmt: skip
    parts = [
        np.fromfile(tmp_path / f"tokens/{name}-00000.bin", "<u2") for name in ("train", "held-out")
    ]
    assert "".join(stored.decode(part.tolist()) for part in parts) == content
    assert sum(map(len, parts)) < 0.6 * len(content)


def test_special_tokens_in_a_text_are_encoded_as_text(tokenizer: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    with_end = Tokenizer.from_file(str(tokenizer))
    with_end.add_special_tokens(["<end>"])
    with_end.save(str(tokenizer))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("the dog<end> and the cat\n" * 40)
    options = [f"--tokenizer={tokenizer}", "--end-of-text=<end>"]
    assert prepare(tmp_path / "text", tmp_path / "tokens", *options) == 0
    for name in ("train", "held-out"):
        numbers = np.fromfile(tmp_path / f"tokens/{name}-00000.bin", "<u2").tolist()
        assert numbers.count(with_end.token_to_id("<end>")) == 1
        assert with_end.decode(numbers, skip_special_tokens=False).count("<end> and") > 1


def test_a_tokenizer_that_truncates_and_pads_keeps_all_text(
    tokenizer: Path, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    (tmp_path / "text").mkdir()
    content = "the dog and the cat\n" * 40
    (tmp_path / "text/a.txt").write_text(content)
    limited = Tokenizer.from_file(str(tokenizer))
    limited.enable_truncation(16)
    limited.enable_padding(length=1000)
    limited.save(str(tokenizer))
    assert prepare(tmp_path / "text", tmp_path / "tokens", f"--tokenizer={tokenizer}") == 0
    parts = [
        np.fromfile(tmp_path / f"tokens/{name}-00000.bin", "<u2") for name in ("train", "held-out")
    ]
    assert "".join(limited.decode(part.tolist()) for part in parts) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "tokenizer.json cannot be read: No such file"),
        ("{}", "is not a valid tokenizer.json"),
    ],
)
def test_an_invalid_tokenizer_is_rejected(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "text", {"a.txt": 3000})
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    assert prepare(tmp_path / "text", tmp_path / "tokens", f"--tokenizer={path}") == 64
    assert message in capsys.readouterr().err


def write_lines(path: Path, lines: list[object]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_lines_are_packed_as_texts_that_end_with_the_end_of_text_token(
    tokenizer: Path, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    extended = Tokenizer.from_file(str(tokenizer))
    extended.add_special_tokens(["<|end|>"])
    extended.save(str(tokenizer))
    lines = [f"the {number} cat and the dog" for number in range(200)]
    write_lines(tmp_path / "text/a.jsonl", [{"body": line} for line in lines])
    options = [f"--tokenizer={tokenizer}", "--min-bytes=1", "--field=body"]
    options += ["--end-of-text=<|end|>"]
    assert prepare(tmp_path / "text", tmp_path / "tokens", *options) == 0
    end, parts = extended.token_to_id("<|end|>"), []
    for name in ("train", "held-out"):
        tokens = np.fromfile(tmp_path / f"tokens/{name}-00000.bin", "<u2").tolist()
        assert tokens[-1] == end
        texts = [extended.decode([*part]) for key, part in groupby(tokens, end.__eq__) if not key]
        parts.append(texts)
    train, held_out = parts
    assert sorted(train + held_out) == sorted(lines)
    assert 5 <= len(held_out) <= 40
    data = load("tokens", tmp_path, (16,), seed=0)
    assert len(data.train) == (train_token_count(tmp_path / "tokens") - 1) // 16


def train_token_count(folder: Path) -> int:
    manifest = read_manifest(folder)
    assert manifest.kind == "tokens"
    return sum(part.count for part in manifest.train.parts)


def test_adding_lines_keeps_the_earlier_held_out_lines(tmp_path: Path) -> None:
    lines: list[object] = [{"text": f"{number:03}" + "x" * 80} for number in range(100)]
    write_lines(tmp_path / "some/a.jsonl", lines[50:])
    write_lines(tmp_path / "all/a.jsonl", lines)
    held_out_lines = []
    for name in ("some", "all"):
        assert prepare(tmp_path / name, tmp_path / "tokens", "--force") == 0
        tokens = np.fromfile(tmp_path / "tokens/held-out-00000.bin", "<u2").astype(np.uint8)
        held_out_lines.append({part[:3] for part in tokens.tobytes().decode().split("x") if part})
    some, every = held_out_lines
    assert some == {number for number in every if int(number) >= 50}


def test_invalid_lines_are_skipped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid = [{"text": f"{number} {'word ' * 20}"} for number in range(60)]
    invalid = [valid[0], {"text": 7}, {"body": "x" * 90}, ["text"], "text", {"text": "short"}, None]
    write_lines(tmp_path / "text/a.jsonl", [*valid, *invalid])
    with (tmp_path / "text/a.jsonl").open("ab") as file:
        file.write(b"\n  \n{\n\xff\n" + b"[" * 100_000 + b"\n" + rb'{"text": "\ud800"}' + b"\n")
        file.write(json.dumps({"text": "the last line without an end " * 3}).encode())
    assert prepare(tmp_path / "text", tmp_path / "tokens") == 0
    output = capsys.readouterr().out
    assert "dropped: 1 duplicate\ndropped: 1 too small\ndropped: 9 unreadable\n" in output


@pytest.mark.parametrize(
    ("has_tokenizer", "message"),
    [(False, "--end-of-text </s> needs --tokenizer"), (True, "--end-of-text </s> is not a token")],
)
def test_unknown_end_of_text_token_is_rejected(
    has_tokenizer: bool,
    message: str,
    tokenizer: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_text(tmp_path / "text", {"a.txt": 3000})
    options = [f"--tokenizer={tokenizer}"] if has_tokenizer else []
    assert prepare(tmp_path / "text", tmp_path / "tokens", "--end-of-text=</s>", *options) == 64
    assert message in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()


@given(content=st.text(ALPHABET), offset=st.integers(0, 20))
def test_text_is_never_cut_within_a_character(content: str, offset: int) -> None:
    encoded = content.encode()
    cut = _character_start(encoded, min(offset, len(encoded)))
    assert encoded[:cut].decode() + encoded[cut:].decode() == content
    assert min(offset, len(encoded)) - cut <= 3


@given(content=st.text(alphabet="ab\né"))
def test_pieces_are_whole_lines_and_contain_the_whole_text(content: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "MIN_PIECE_BYTES", 4)
        pieces = list(_pieces(content.encode()))
    assert b"".join(pieces) == content.encode()
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "has no *.txt, *.jsonl or *.parquet file"),
        ({"a.md": 900}, "has no *.txt, *.jsonl or *.parquet file"),
        ({"a.txt": 63}, "contains 0 training and 0 held-out tokens (1 of 1 texts were dropped)"),
        ({"a.jsonl": 900}, "contains 0 training and 0 held-out tokens (80 of 80 texts were drop"),
    ],
)
def test_too_little_text_is_rejected(
    sizes: dict[str, int], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "text", sizes)
    assert prepare(tmp_path / "text", tmp_path / "tokens") == 64
    assert message in capsys.readouterr().err
    assert not (tmp_path / "tokens/manifest.json").exists()


def test_unavailable_tokenizer_is_not_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=error))
    with pytest.raises(UnavailableError, match="Input/output error"):
        tokenizer_encoder(tmp_path / "tokenizer.json")


def write(path: Path, **columns: object) -> Path:
    # Importing pyarrow for all tests would take half a second in each test process.
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    import pyarrow as pa

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


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, UnavailableError), (errno.EACCES, DataError)]
)
def test_texts_that_cannot_be_read_are_an_error(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}')
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(Path, "open", Mock(side_effect=error))
    with pytest.raises(kind, match=rf"a\.jsonl cannot be read: {error.strerror}"):
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
