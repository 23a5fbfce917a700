import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from tests.training.data.files import write_text
from training import data
from training.command_line import read_config
from training.data import builtin, load
from training.data.__main__ import main
from training.data.manifest import read_manifest
from training.data.prepare import output
from training.settings import DatasetName

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared tokens and shards. Read-only: use `prepared_copy` to change them."""
    folder = tmp_path_factory.mktemp("prepared")
    write_text(folder / "text", {"a.txt": 3000})
    assert main(["prepare", "text", f"--folder={folder}/text", f"{folder}/tokens"]) == 0
    assert main(["prepare", "images", "--dataset=digits", f"{folder}/shards"]) == 0
    return folder


@pytest.fixture
def prepared_copy(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared data sets, which the test may change."""
    return shutil.copytree(prepared, tmp_path / "prepared_copy")


@pytest.mark.parametrize(
    "command", [[], ["prepare"], ["prepare", "images"], ["prepare", "text"], ["check"]]
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert f"usage: python -m training.data {' '.join(command)}".strip() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["prepare", "images", "/x"], "one of the arguments --folder --dataset is required"),
        (["prepare", "images", "--dataset=cats", "/x"], "choose from 'digits', 'glyphs'"),
        (
            ["prepare", "images", "--folder=/y", "--size=0", "/x"],
            "--size: must be a positive integer",
        ),
        (["prepare", "images", "--folder=/y", "--size=5000", "/x"], "must be at most 4096"),
        (["prepare", "text", "--folder=/y", "--held-out=1", "/x"], "between 0 and 1"),
        (["prepare", "text", "--folder=/y", "--held-out=some", "/x"], "between 0 and 1"),
        (["prepare", "text", "--folder=/y"], "required: DIR"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 64
    output = capsys.readouterr().err
    assert message in output.replace("choose from digits, glyphs", "choose from 'digits', 'glyphs'")
    assert output.count("\n") == 1


def test_custom_data_set_error_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["validate", "--dataset=absent_module:Halves", str(tmp_path / "report")]
    assert main(command) == 64
    output = capsys.readouterr().err
    assert "dataset absent_module:Halves" in output
    assert output.count("\n") == 1


def test_check_reports_an_intact_data_set(
    prepared_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["check", str(prepared_copy / "shards")]) == 0
    assert main(["check", str(prepared_copy / "tokens")]) == 0
    assert "1,437 training images in 1 file" in capsys.readouterr().out


def flip_last_bit(content: bytes) -> bytes:
    """Flip the last bit of the content."""
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tokens/train-00000.bin", flip_last_bit),
        ("tokens/held-out-00000.bin", lambda content: content[:-2]),
        ("shards/held-out-00000.tar", flip_last_bit),
        ("shards/train-index.npy", flip_last_bit),
    ],
)
def test_check_names_the_damaged_file(
    file: str,
    damage: Callable[[bytes], bytes],
    prepared_copy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = prepared_copy / file
    path.write_bytes(damage(path.read_bytes()))
    assert main(["check", str(path.parent)]) == 64
    assert f"{path} is damaged" in capsys.readouterr().err


def test_index_that_does_not_match_the_shards_is_rejected(
    prepared_copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prepared_copy / "shards/train-index.npy"
    index = np.load(path)
    index[3, 3] = (index[3, 3] + 1) % 10
    np.save(path, index)
    monkeypatch.setattr(data, "verify", lambda *_: None)
    assert main(["check", str(prepared_copy / "shards")]) == 64
    assert "train-index.npy is not the index of train-00000.tar" in capsys.readouterr().err


def test_non_empty_target_requires_force(
    prepared_copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "GLYPHS_TRAIN", 20)
    monkeypatch.setattr(builtin, "GLYPHS_HELD_OUT", 10)
    command = ["prepare", "images", "--dataset=glyphs", str(prepared_copy / "shards")]
    assert main(command) == 64
    assert "is not empty" in capsys.readouterr().err
    assert load("shards", prepared_copy, None, seed=0).shape == (1, 8, 8)
    assert main([*command, "--force"]) == 0
    assert load("shards", prepared_copy, None, seed=0).shape == (1, 28, 28)


@pytest.mark.parametrize("kind", ["images", "text"])
def test_a_target_inside_its_source_is_rejected(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cat").mkdir()
    assert main(["prepare", kind, f"--folder={tmp_path}", str(tmp_path / "cat/../new")]) == 64
    assert f"is inside the source {tmp_path}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["cat"]


def test_target_that_cannot_be_written_is_reported_as_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["prepare", "images", "--dataset=digits", str(tmp_path / "file/shards")]) == 1
    assert "file/shards cannot be written: [Errno 20]" in capsys.readouterr().err


def test_full_disk_is_reported_with_the_free_space_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(output, "part_of", Mock(side_effect=error))
    target = tmp_path / "new/shards"
    assert main(["prepare", "images", "--dataset=digits", str(target)]) == 1
    free = r"\d+(\.\d+)? \wiB free"
    assert re.fullmatch(
        rf"{target} cannot be written: No space left on device \({free}\); nothing was written: "
        "free space or use a larger volume, and run the same command again\n",
        capsys.readouterr().err,
    )


def test_interruption_while_files_are_moved_is_reported(
    prepared_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "sync_folder", Mock(side_effect=KeyboardInterrupt(143)))
    command = ["prepare", "images", "--dataset=digits", "--force", str(prepared_copy / "shards")]
    assert main(command) == 143
    assert "complete, but not all of its files are in place: run" in capsys.readouterr().err
    monkeypatch.undo()
    command.remove("--force")
    assert main(command) == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_preparation_can_be_repeated_after_the_process_was_interrupted(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    command = ["prepare", "images", "--dataset=glyphs", str(tmp_path / "shards")]
    process = subprocess.Popen(
        [sys.executable, "-m", "training.data", *command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background ignore SIGINT, and so would their child processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (tmp_path / "shards/.unfinished/train-00000.tar").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, output = process.communicate()
    assert process.returncode == code
    message = "interrupted; nothing was written: run the same command again\n"
    assert output.endswith("" if number == signal.SIGKILL else message)
    assert not (tmp_path / "shards/manifest.json").exists()
    assert main(["prepare", "images", "--dataset=digits", str(tmp_path / "shards")]) == 0
    assert len(list((tmp_path / "shards").iterdir())) == 5


def documented_commands() -> list[list[str]]:
    """Return the commands in the documentation, split into words."""
    text = (ROOT / "docs/training-data.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"^\$ (.*(?:\\\n.*)*)", "\n".join(blocks), re.MULTILINE)
    return [shlex.split(command.replace("\\\n", " ")) for command in commands]


def test_the_documented_commands_work_in_order(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 40, 40, 3), np.uint8)
    for number, image in enumerate(pixels):
        path = tmp_path / f"pictures/{'cat' if number % 2 else 'dog'}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    write_text(tmp_path / "books", {"a.txt": 9000})
    commands = [
        [word.replace("/data", str(tmp_path)) for word in each] for each in documented_commands()
    ]
    assert len(commands) >= 6
    for python, module, program, *arguments in commands:
        assert [python, module] == ["python", "-m"]
        if program == "training.data":
            assert main(arguments) == 0
        else:
            assert program == "training"
            config = read_config(arguments, {})
            data = load(config.dataset, Path(config.data_dir), None, config.seed)
            assert len(data.train) > len(data.held_out) > 0


def test_the_documentation_names_every_data_set_and_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs/training-data.md").read_text()
    for name in DatasetName.__args__:  # type: ignore[attr-defined]
        assert f"`{name}`" in text
    for kind in ("images", "text"):
        with pytest.raises(SystemExit):
            main(["prepare", kind, "--help"])
        for option in set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}:
            assert option in text


def test_settings_are_stored_in_the_manifest(prepared_copy: Path) -> None:
    assert read_manifest(prepared_copy / "shards").settings == {"dataset": "digits"}
    assert read_manifest(prepared_copy / "tokens").settings == {"held_out": 0.1, "min_bytes": 64}
