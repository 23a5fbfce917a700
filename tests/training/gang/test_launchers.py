"""Documented launchers start gangs, and preserve exit codes and time limits."""

import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from torch.distributed.elastic import metrics
from torch.distributed.elastic.multiprocessing import SignalException

from tests.training.programs import SLOWLY, Program, arguments, free_port, start, until
from training.launch import run_launcher
from workload import exit_codes

FLAGS = ["--model=digits-net", "--dataset=digits", "--epochs=1"]
PORT = "{port}"
LAUNCHED: dict[str, list[Mapping[str, str]]] = {
    "one pod per rank": [
        {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
        for rank in range(2)
    ],
    "TrainJob": [
        {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": PORT,
        }
        for rank in range(2)
    ],
    "Indexed Job": [
        {
            "JOB_COMPLETION_INDEX": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": PORT,
        }
        for rank in range(2)
    ],
}
"""The environment variables that each launcher sets in its pods."""


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_pods_with_the_variables_of_a_launcher_form_a_gang(launcher: str, tmp_path: Path) -> None:
    port = str(free_port())
    gang = [
        start(
            "training",
            [*FLAGS, f"--run-dir={tmp_path / 'run'}"],
            {name: value.format(port=port) for name, value in pod.items()},
            tmp_path / f"pod-{number}",
        )
        for number, pod in enumerate(LAUNCHED[launcher])
    ]
    assert [program.exit_code() for program in gang] == [exit_codes.DONE] * 2, gang[0].text
    assert '"processes": 2' in gang[0].text


# torchrun does not forward a signal to processes that it is still starting.
READY = "sleep 1; echo ready"


def launch(output: Path, script: str, environment: Mapping[str, str] | None = None) -> Program:
    """Start torchrun with a shell script as its only process."""
    options = ["--nproc-per-node=1", f"--master-port={free_port()}", "--no-python"]
    return start("training.launch", [*options, "sh", "-c", script], environment or {}, output)


def test_launcher_waits_for_a_slow_save(tmp_path: Path) -> None:
    """Check that the launcher extends the time for which torchrun waits after SIGTERM."""
    saves = f"trap 'sleep 3; exit 75' TERM; {READY}; while :; do sleep 0.1; done"
    launcher = launch(tmp_path / "output", saves)
    launcher.await_output("ready\n")
    [process] = (
        psutil.Process(launcher.process.pid).children()[-1:] if launcher.process.pid else [None]
    )
    assert process is not None
    assert process.environ()["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "3600"
    launcher.signal(signal.SIGTERM)
    assert launcher.exit_code() == exit_codes.INTERRUPTED, launcher.text


def test_run_with_loader_processes_is_saved_after_sigterm(tmp_path: Path) -> None:
    # torchrun signals the process group of the training process.
    options = ["--nproc-per-node=1", f"--master-port={free_port()}", "-m", "training"]
    options += arguments(tmp_path / "run", SLOWLY, "--loader-workers=1")
    launcher = start("training.launch", options, {}, tmp_path / "output")
    launcher.await_output('"event": "step"')
    launcher.signal(signal.SIGTERM)
    assert launcher.exit_code() == exit_codes.INTERRUPTED, launcher.text


@pytest.mark.parametrize(
    ("handler", "code"),
    [("exit 75", 75), ("exit 0", 0), ("exit 64", 64), ("kill -9 $$$$", 128 + signal.SIGKILL)],
)
def test_launcher_reports_a_saved_run_only_if_its_process_reported_it(
    handler: str, code: int, tmp_path: Path
) -> None:
    script = f"trap '{handler}' TERM; {READY}; while :; do sleep 0.1; done"
    launcher = launch(tmp_path / "output", script)
    launcher.await_output("ready\n")
    launcher.signal(signal.SIGTERM)
    assert launcher.exit_code() == code, launcher.text


def test_signal_while_torchrun_records_its_metrics_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_sigterm() -> float:
        raise SignalException("SIGTERM", signal.SIGTERM)

    monkeypatch.setattr(metrics.api, "time", SimpleNamespace(time=raise_sigterm))
    assert run_launcher(metrics.api.prof(lambda: None)) == 128 + signal.SIGTERM


def test_process_aborted_by_a_library_is_reported_with_its_signal(tmp_path: Path) -> None:
    launcher = launch(tmp_path / "output", "kill -ABRT $$$$")
    assert launcher.exit_code() == 128 + signal.SIGABRT
    assert '"message": "rank 0 was killed by SIGABRT: a library aborted' in launcher.text


def test_run_killed_by_torchrun_is_not_reported_as_saved(tmp_path: Path) -> None:
    script = f"trap '' TERM; {READY}; while :; do sleep 0.1; done"
    launcher = launch(tmp_path / "output", script, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})
    launcher.await_output("ready\n")
    launcher.signal(signal.SIGTERM)
    until(lambda: not launcher.process.is_alive())
    assert launcher.exit_code() == 128 + signal.SIGKILL, launcher.text
