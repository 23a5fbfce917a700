"""The command line of `python -m devcluster`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import launcher, lifecycle
from devcluster.__main__ import main
from devcluster.launcher import exclusive
from devcluster.paths import CHECKOUT, Layout
from devcluster.spec import Kind

COMMANDS = {
    "up": "start the cluster",
    "deploy": "wait for training, and request a prediction",
    "down": "checkpoints and the stack's state are kept",
    "status": "list runs",
    "env": "shell exports",
    "logs": "the last lines",
}

pytestmark = pytest.mark.usefixtures("no_clusters")


def words(text: str) -> str:
    return " ".join(text.split())


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line of a failed command's error."""
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = words(capsys.readouterr().out)
    assert COMMANDS[command] in text
    assert "real, simulated, or auto" in text


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = words(capsys.readouterr().out)
    assert all(f" {name} " in text and help_text in text for name, help_text in COMMANDS.items())


def test_only_commands_that_start_nodes_accept_the_nodes_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["down", "--simulated-nodes=4"])
    assert ended.value.code == 2


def test_kubectl_ignores_the_users_preferences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERC", "preferences")
    assert main(["logs"]) == 0
    assert os.environ["KUBERC"] == "off"


def test_strict_umask_of_the_user_is_not_inherited() -> None:
    users = os.umask(0o077)
    try:
        assert main(["logs"]) == 0
    finally:
        inherited = os.umask(users)
    assert inherited == 0o022


def test_terminated_command_cleans_up_before_it_exits(tmp_path: Path) -> None:
    unshare, started = tmp_path / "unshare", tmp_path / "started"
    os.mkfifo(started)
    unshare.write_text(f"#!/bin/sh\necho > {started}\nexec sleep 60\n")
    unshare.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "devcluster", "up", "--nodes=simulated"],
        cwd=CHECKOUT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    started.read_text()
    process.terminate()
    # Without a handler, the status would be negative, and nothing would be cleaned up.
    assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", ["-1", "four", "1.5"])
def test_an_invalid_number_of_nodes_is_rejected(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", f"--simulated-nodes={number}"])
    assert ended.value.code == 2
    assert f"'{number}' is not a valid number of nodes" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_kind_of_nodes_is_reported_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line([command, "--nodes=fake"], capsys)
    assert line == "error: NODES is 'fake': use NODES=real or NODES=simulated, or unset NODES"


def test_a_cache_directory_that_cannot_be_created_is_reported_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.touch()
    assert str(home) in error_line(["up", "--nodes=simulated"], capsys)


@pytest.mark.parametrize("name", ["GPU_PLATFORM_CACHE", "GPU_PLATFORM_STATE"])
def test_a_directory_of_an_unknown_user_is_reported_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "~unknown/cache")
    line = error_line(["status"], capsys)
    assert line.startswith("error: ~unknown/cache cannot be resolved")


@pytest.mark.parametrize("text", [True, False])
def test_failed_external_command_is_reported_with_its_error(
    text: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        command = ["sh", "-c", "echo out of memory >&2; exit 7"]
        subprocess.run(command, check=True, capture_output=True, text=text)

    monkeypatch.setattr(lifecycle, "down", down)
    assert main(["down", "--nodes=real"]) == 1
    first, reason = capsys.readouterr().err.splitlines()
    assert first.endswith("exited with 7")
    assert reason == "out of memory"


def test_env_without_a_cluster_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(["env"], capsys)
    assert line == "error: no embedded cluster is running: start one with `make up`"


def test_the_status_reports_that_no_cluster_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 3
    assert capsys.readouterr().out == "no embedded cluster is running\n"


def test_down_without_a_running_cluster_is_not_an_error(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr() == ("", "")
    assert not home.exists()


def test_a_concurrent_command_is_reported_in_one_line(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    with exclusive(layout.lock, "make up"):
        line = error_line(["down"], capsys)
    assert line.startswith("error: `make up` has been running since")


def test_purge_removes_the_state_but_keeps_the_cache(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    (layout.volumes / "checkpoints").mkdir(parents=True)
    layout.kubeconfig.touch()
    layout.images.mkdir()
    assert main(["down", "--nodes=real", "--purge"]) == 0
    assert capsys.readouterr().out == "deleted the state of the real cluster\n"
    assert main(["down", "--nodes=real", "--purge"]) == 0
    assert capsys.readouterr().out == ""
    assert {path.name for path in layout.state.iterdir()} <= {"lock"}
    assert layout.images.exists()


def test_purge_removes_symbolic_links_but_keeps_their_targets(layout: Layout) -> None:
    target = layout.cache / "other-disk"
    target.mkdir()
    layout.volumes.symlink_to(target)
    assert main(["down", "--nodes=real", "--purge"]) == 0
    assert not layout.volumes.is_symlink()
    assert target.exists()


def test_down_keeps_checkpoints_and_the_stack(layout: Layout) -> None:
    kept = [layout.volumes / "checkpoints", layout.pulumi_backend]
    for folder in kept:
        folder.mkdir(parents=True)
    assert main(["down"]) == 0
    assert all(folder.exists() for folder in kept)


def test_logs_are_listed_by_name(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    (layout.logs / "gpu-node-0").mkdir()
    (layout.logs / "gpu-node-0" / "kubelet.log").touch()
    assert main(["logs"]) == 0
    assert capsys.readouterr().out == f"{layout.logs}/gpu-node-0/kubelet.log\n"


def test_the_last_lines_of_a_log_are_shown(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    log = layout.logs / "init.log"
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(150)))
    assert main(["logs", "init"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0][:8]) == (100, "line 50 ")


def test_a_missing_log_is_reported_in_one_line(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(["logs", "kublet"], capsys)
    assert line == "error: 'kublet' has no log: `python -m devcluster logs` lists the existing logs"


def test_package_can_be_run_as_a_program(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "devcluster", "status", "--nodes=simulated"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        3,
        "no embedded cluster is running\n",
        "",
    )


def test_an_unknown_operator_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", "--operators=trainer,kueue"])
    assert ended.value.code == 2
    assert (
        "unknown operators ['kueue']: use training-operator, trainer, kuberay, lws"
        in capsys.readouterr().err
    )


def test_another_volcano_version_requires_simulated_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devcluster.host._obstacle_to_real_nodes", str)
    assert main(["up", "--nodes=real", "--volcano=1.10.0"]) == 1
    assert "--volcano requires simulated nodes" in capsys.readouterr().err


def test_operators_require_real_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--nodes=simulated", "--operators=trainer"]) == 1
    assert "--operators requires real nodes" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [True, False])
def test_down_reports_the_stopped_cluster_whose_record_is_missing(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Before it is stopped, a cluster process may re-create the removed state directory.
    if kept:
        Layout.of(Kind.SIMULATED).state.mkdir(parents=True)
    monkeypatch.setattr(launcher, "stop_orphans", lambda kind: int(kind == Kind.SIMULATED))
    assert main(["down"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("stopped the simulated cluster, whose record is missing: its state")
