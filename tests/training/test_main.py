import errno
import json
import os
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import training.train
from training.__main__ import main
from training.gang.measurements import SlowNodeError
from workload import exit_codes, report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs=0"], "--epochs is '0'"),
        (["--nope"], "unrecognized arguments: --nope"),
        (["--run-dir=/dev/null/run", "--dataset=synthetic"], "run_dir /dev/null/run cannot be"),
        (["--dataset=cifar10", "--data-dir=/nowhere"], "/nowhere/cifar-10-batches-bin/data_batch"),
        (["--device=cuda"], "needs its own GPU"),
    ],
)
def test_invalid_configuration_exits_with_64_and_a_one_line_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(report, "TERMINATION_LOG", log)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["training", f"--run-dir={tmp_path}", *arguments])
    assert main() == exit_codes.BAD_INPUT
    [line] = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    assert (event["event"], event["exit_code"]) == ("error", 64)
    assert message in event["message"]
    assert json.loads(log.read_text()) == event


@pytest.mark.parametrize(
    "function", ["pathlib.Path.read_bytes", "training.gang.preflight.write_probe"]
)
def test_unavailable_storage_exits_with_1(
    function: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(function, Mock(side_effect=error))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = [f"--run-dir={tmp_path}", "--dataset=cifar10", f"--data-dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["training", *arguments])
    assert main() == exit_codes.FAILED
    [line] = capsys.readouterr().out.splitlines()
    assert "Stale file handle" in json.loads(line)["message"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            errno.ENOSPC,
            "run_dir {}: No space left on device (1 MiB free); free space or use a larger volume. "
            "A restart resumes from the newest checkpoint",
        ),
        (
            errno.ENOENT,
            "[Errno 2] No such file or directory: '{}/checkpoints'; check that no other process "
            "uses or removes run_dir {}",
        ),
    ],
)
def test_error_of_the_run_directory_is_reported_with_a_remedy(
    number: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = OSError(number, os.strerror(number), f"{tmp_path}/checkpoints")
    monkeypatch.setattr(training.train, "run", Mock(side_effect=error))
    monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=Mock(total=2**30, free=2**20)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["training", f"--run-dir={tmp_path}"])
    assert main() == exit_codes.FAILED
    message = json.loads(capsys.readouterr().out)["message"]
    assert message == f"the run cannot be saved or resumed: {reason.format(*[tmp_path] * 2)}"


def test_slow_node_exits_with_69_and_a_plain_text_termination_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> int:
        raise SlowNodeError("slow node b: it is slow\nslow node c: it is as slow")

    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(report, "TERMINATION_LOG", log)
    monkeypatch.setattr(training.train, "run", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["training"])
    assert main() == exit_codes.SLOW_NODE
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["exit_code"]) == ("error", 69)
    assert log.read_text() == event["message"]
    assert [line[:13] for line in log.read_text().splitlines()] == [
        "slow node b: ",
        "slow node c: ",
    ]


def test_exit_of_custom_code_is_not_a_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training.train, "run", Mock(side_effect=SystemExit(0)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["training"])
    assert main() == exit_codes.BAD_INPUT
    assert json.loads(capsys.readouterr().out)["message"] == "error in the program: SystemExit: 0"


def test_ctrl_c_before_the_first_step_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(training.train, "run", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["training"])
    assert main() == 130
    printed = capsys.readouterr()
    assert json.loads(printed.out)["message"].startswith("interrupted without saving")
    assert not printed.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for `cudaE"),
            exit_codes.BAD_INPUT,
            "error in the program: CUDA error: device-side assert triggered",
        ),
        (
            torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
            exit_codes.FAILED,
            "AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. 1 MiB is free. Of the allocated memory 2"),
            exit_codes.FAILED,
            "CUDA out of memory. 1 MiB is free. To reduce memory use, decrease batch_size and "
            "increase accumulate, or enable activation_checkpointing",
        ),
    ],
)
def test_gpu_errors_are_retried_unless_they_would_recur(
    error: Exception,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*_: object) -> int:
        raise error

    monkeypatch.setattr(training.train, "run", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["training"])
    assert main() == code
    printed = capsys.readouterr()
    assert json.loads(printed.out)["message"] == message
    assert "Traceback" in printed.err


def test_termination_message_keeps_the_first_error_of_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr(report, "TERMINATION_LOG", log)
    report.conclude("error", message="there is no such file outside of a pod")
    assert not log.exists()
    log.touch()
    report.conclude("error", message="disk full")
    report.conclude("error", message="the peer is gone")
    assert json.loads(log.read_text())["message"] == "disk full"
