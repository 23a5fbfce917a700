"""Every documented launcher starts a gang, and exit codes and limits hold under it."""

import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from torch.distributed.elastic import metrics
from torch.distributed.elastic.multiprocessing import SignalException

from tests.training.programs import Program, free_port, start, until
from training.launch import run_launcher
from workload import exit_codes

FLAGS = ["--model=digits-net", "--dataset=digits", "--epochs=1"]
PORT = "{port}"
LAUNCHED: dict[str, list[Mapping[str, str]]] = {
    "a pod per rank": [
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
"""The variables of each pod, as these launchers set them."""


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_pods_of_a_launcher_form_a_gang(launcher: str, tmp_path: Path) -> None:
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


# A signal to torchrun does not reach processes that it is still starting.
READY = "sleep 1; echo ready"


def launch(output: Path, script: str, environment: Mapping[str, str] | None = None) -> Program:
    """Start torchrun with one process, a shell script."""
    options = ["--nproc-per-node=1", f"--master-port={free_port()}", "--no-python"]
    return start("training.launch", [*options, "sh", "-c", script], environment or {}, output)


def test_the_launcher_waits_for_a_save_that_takes_long(tmp_path: Path) -> None:
    """Let a save take longer than torchrun waits, unless the launcher configures a longer wait."""
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


@pytest.mark.parametrize(
    ("end", "code"),
    [("exit 75", 75), ("exit 0", 0), ("exit 64", 64), ("kill -9 $$$$", 128 + signal.SIGKILL)],
)
def test_the_launcher_reports_saved_only_if_its_process_did(
    end: str, code: int, tmp_path: Path
) -> None:
    script = f"trap '{end}' TERM; {READY}; while :; do sleep 0.1; done"
    launcher = launch(tmp_path / "output", script)
    launcher.await_output("ready\n")
    launcher.signal(signal.SIGTERM)
    assert launcher.exit_code() == code, launcher.text


def test_a_signal_while_torchrun_measures_itself_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> float:
        raise SignalException("SIGTERM", signal.SIGTERM)

    monkeypatch.setattr(metrics.api, "time", SimpleNamespace(time=interrupted))
    assert run_launcher(metrics.api.prof(lambda: None)) == 128 + signal.SIGTERM


def test_a_process_that_a_library_aborts_leaves_a_message(tmp_path: Path) -> None:
    launcher = launch(tmp_path / "output", "kill -ABRT $$$$")
    assert launcher.exit_code() == 128 + signal.SIGABRT
    assert '"message": "rank 0 was killed by SIGABRT: a library aborted' in launcher.text


def test_a_process_that_is_killed_by_torchrun_has_not_saved(tmp_path: Path) -> None:
    script = f"trap '' TERM; {READY}; while :; do sleep 0.1; done"
    launcher = launch(tmp_path / "output", script, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})
    launcher.await_output("ready\n")
    launcher.signal(signal.SIGTERM)
    until(lambda: not launcher.process.is_alive())
    assert launcher.exit_code() == 128 + signal.SIGKILL, launcher.text
