"""Tracking of runs with a real MLflow server and W&B's offline directories."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.runs.command import main
from tests.engine.models.conftest import Shelf, shelf, trained  # noqa: F401 - fixtures
from tests.registry import registry  # noqa: F401 - a fixture
from tests.training.programs import free_port, until
from tools.environments import ROOT, environment
from tools.environments import run as output_of
from workload import exit_codes
from workload.manifest import read_manifest

SETTINGS = ["--model=digits-net", "--dataset=synthetic", "--epochs=2", "--batch-size=128"]
"""32 steps of one process."""


@dataclass
class Tracked:
    """An MLflow server, and programs that report to it."""

    python: Path
    url: str
    folder: Path

    def start(self, name: str, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a program whose run is the directory `name`."""
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "MLFLOW_TRACKING_URI": self.url,
            "MLFLOW_EXPERIMENT_NAME": "tests",
            "RUN_TRACK_SECONDS": "200",
            "RUN_DIR": str(self.folder / name),
            **variables,
        }
        return subprocess.Popen(
            [str(self.python), *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, name: str, *flags: str, **variables: str) -> subprocess.Popen[str]:
        """Start the training program."""
        place = f"--run-dir={self.folder / name}"
        return self.start(name, "-m", "training", *SETTINGS, place, *flags, **variables)

    def read(self, name: str) -> dict[str, Any]:
        """Return the data of a run that both services have recorded."""
        program = str(Path(__file__).with_name("read_tracking.py"))
        command = ["env", f"MLFLOW_TRACKING_URI={self.url}", str(self.python), program]
        found: dict[str, Any] = json.loads(
            output_of([*command, str(self.folder / name)]).splitlines()[-1]
        )
        return found


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def losses_of(found: list[dict[str, Any]]) -> list[list[Any]]:
    return [[event["step"], event["loss"]] for event in found if event["event"] == "step"]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracked]:
    """Start an MLflow server."""
    folder = tmp_path_factory.mktemp("tracking")
    python, port = environment("tracking", inherits=True), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "mlflow", "server", "--port", port, "--workers", 1]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", folder / "artifacts"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            list(map(str, command)), cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: server.poll() is not None or answers(url))
        assert server.poll() is None, (folder / "server.log").read_text()
        yield Tracked(python, url, folder)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def test_interrupted_run_is_recorded_as_a_single_run_in_both_services(tracked: Tracked) -> None:
    flags = ["--track=mlflow,wandb", "--log-every=1", "--checkpoint-steps=2"]
    lines = []
    with tracked.train("digits", *flags, "--step-delay=0.3") as first:
        assert first.stdout is not None
        for line in first.stdout:
            lines.append(line)
            if '"step": 5,' in line:
                first.send_signal(signal.SIGTERM)
    assert first.returncode == exit_codes.INTERRUPTED
    [interrupted] = tracked.read("digits")["mlflow"]
    assert interrupted["status"] == "KILLED"
    second = tracked.train("digits", *flags)
    output, _ = second.communicate(timeout=280)
    assert second.returncode == exit_codes.DONE
    written = events("".join(lines)) + events(output)
    assert not [event for event in written if event["event"] == "warning"]
    found = tracked.read("digits")

    [run] = found["mlflow"]
    assert run["status"] == "FINISHED"
    assert (
        run["params"].items() >= {"model": "digits-net", "batch_size": "128", "seed": "0"}.items()
    )
    losses = losses_of(written)
    assert sorted(run["metrics"]["step/loss"]) == losses
    epochs = [event for event in written if event["event"] == "epoch"]
    assert run["metrics"]["epoch/held_out_loss"] == [
        [event["step"], event["held_out_loss"]] for event in epochs
    ]
    manifest = read_manifest(tracked.folder / "digits/export")
    assert run["tags"]["sha256"] == manifest.weights.sha256
    assert run["tags"]["export"] == str(tracked.folder / "digits/export")
    assert run["metrics"]["finished/accuracy"][0][1] == manifest.metrics["accuracy"]

    before, after = found["wandb"]
    assert before["id"] == after["id"]
    assert (before["exit"], after["exit"]) == (0, 0)
    assert before["config"]["model"] == "digits-net"
    steps = [
        [each["training_step"], each["step/loss"]]
        for part in (before, after)
        for each in part["history"]
        if "step/loss" in each
    ]
    assert steps == losses
    assert after["summary"]["sha256"] == manifest.weights.sha256


def test_unreachable_tracking_server_only_causes_a_warning(tracked: Tracked) -> None:
    alone = tracked.train("alone")
    lost = tracked.train("lost", "--track=mlflow", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    results = [program.communicate(timeout=280)[0] for program in (alone, lost)]
    assert (alone.returncode, lost.returncode) == (exit_codes.DONE, exit_codes.DONE)
    digests = {events(output)[-1]["sha256"] for output in results}
    assert len(digests) == 1
    lines = events(results[1])
    [warning] = [event for event in lines if event["event"] == "warning"]
    lines.remove(warning)
    assert (lines[0]["event"], lines[-1]["event"]) == ("start", "finished")
    assert warning["message"].startswith(f"mlflow did not receive {len(lines)} progress lines: ")
    assert "127.0.0.1" in warning["message"]


def test_custom_program_with_the_run_library_is_tracked(tracked: Tracked) -> None:
    command = [
        "-m",
        "training.launch",
        "--nproc-per-node=2",
        str(ROOT / "examples/frameworks/plain.py"),
    ]
    program = tracked.start("plain", *command, "20", RUN_TRACK="mlflow,wandb")
    output, _ = program.communicate(timeout=280)
    assert program.returncode == exit_codes.DONE, output
    found = tracked.read("plain")
    [run], [offline] = found["mlflow"], found["wandb"]
    losses = [
        [event["step"], event["loss"]] for event in events(output) if event["event"] == "step"
    ]
    assert losses
    assert run["metrics"]["step/loss"] == losses
    assert (run["status"], run["params"]["processes"]) == ("FINISHED", "2")
    assert [each["step/loss"] for each in offline["history"] if "step/loss" in each] == [
        loss for _, loss in losses
    ]


def test_failed_run_is_recorded_with_its_error_message(tracked: Tracked) -> None:
    program = tracked.train("failed", "--track=mlflow", "--model=simple-cnn", "--dataset=shards")
    output, _ = program.communicate(timeout=280)
    assert program.returncode == exit_codes.BAD_INPUT
    [run] = tracked.read("failed")["mlflow"]
    assert run["status"] == "FAILED"
    assert run["tags"]["message"] == events(output)[-1]["message"]


def test_model_versions_and_stages_are_in_the_model_registry(
    tracked: Tracked,
    shelf: Shelf,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = f"{tracked.url}/api/2.0/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracked.url)
    created = httpx.post(f"{api}/runs/create", json={"experiment_id": "0"}, timeout=60).json()
    identifier = created["run"]["info"]["run_id"]
    export = shelf.exports["first"]
    (export.parent / "tracking.json").write_text(json.dumps({"mlflow": identifier}))
    files = ["--key", str(shelf.key), "--objects", str(shelf.objects["first"])]
    publish = ["models", "publish", str(export), shelf.name, *files, "--mlflow"]
    assert main(publish) == main(publish) == 0
    where = capsys.readouterr().out.splitlines()[-1]
    promote = ["models", "promote", where, "production", "--key", str(shelf.public)]
    assert main([*promote, "--mlflow"]) == 0

    name = shelf.path.replace("/", ".")
    filtered = {"filter": f"name='{name}'"}
    search = httpx.get(f"{api}/model-versions/search", params=filtered, timeout=60)
    [version] = search.json()["model_versions"]
    assert (version["source"], version["run_id"]) == (f"oci://{where}", identifier)
    tags = {each["key"]: each["value"] for each in version["tags"]}
    manifest = read_manifest(export)
    assert (tags["run"], tags["data_sha256"]) == (manifest.run, manifest.data_sha256)
    assert tags["metrics.accuracy"] == str(manifest.metrics["accuracy"])
    alias = httpx.get(
        f"{api}/registered-models/alias",
        params={"name": name, "alias": "production"},
        timeout=60,
    )
    assert alias.json()["model_version"]["version"] == version["version"]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert main(promote) == 0
    assert main([*promote, "--mlflow"]) == 1
    assert "error: MLflow at http://127.0.0.1:9: " in capsys.readouterr().err
