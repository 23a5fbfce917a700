"""Output of commands to streams that cannot be written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from policies import output

DIFF = ("gitops", "diff", "dev", "prod")
EXPORT = ("gpu_platform", "run", "job.yaml", "--namespace", "vision", "--export")
CHECK = ("policies.check", "configmap.yaml")
HELP = ("policies.check", "--help")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(
        "digits: {queue: research, nodes: 1, gpus_per_node: 1, cpu: 1, memory: 1Gi, "
        "hyperparameters: {model: digits-net, dataset: digits}}"
    )
    (tmp_path / "configmap.yaml").write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: ml}}"
    )
    return tmp_path


def execute(
    folder: Path, command: tuple[str, ...], stdout: int, prefix: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [*prefix, sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", [DIFF, EXPORT, HELP], ids=" ".join)
def test_closed_pipe_causes_no_error_message(folder: Path, command: tuple[str, ...]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    completed = execute(folder, command, write_end)
    os.close(write_end)
    assert (completed.returncode, completed.stderr) == (141, "")


@pytest.mark.parametrize(("command", "status"), [(EXPORT, 1), (CHECK, 2)])
def test_full_disk_is_reported_in_one_line(
    folder: Path, command: tuple[str, ...], status: int
) -> None:
    with Path("/dev/full").open("w") as full_device:
        completed = execute(folder, command, full_device.fileno())
    assert completed.returncode == status
    assert completed.stderr == "error: the output cannot be written: No space left on device\n"


def test_output_to_a_closed_stream_is_discarded(folder: Path) -> None:
    close_stdout = ("sh", "-c", 'exec "$@" >&-', "sh")
    completed = execute(folder, CHECK, subprocess.DEVNULL, close_stdout)
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_the_caller_ignores_remain_ignored(number: signal.Signals) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(number, signal.SIG_IGN)
        output.exit_on_termination()
        os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
