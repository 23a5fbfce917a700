"""The TensorFlow example with one and two workers, in an environment of pinned packages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.programs import free_port

ROOT = Path(__file__).parent.parent.parent.parent
PINS = [ROOT / "requirements" / f"{name}.txt" for name in ("tensorflow", "tensorflow-image")]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter with TensorFlow for the CPU; the project's environment has none."""
    folder = tmp_path_factory.mktemp("tensorflow")
    packages = ["--no-deps", "--require-hashes", *(f"--requirement={file}" for file in PINS)]
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", folder], check=True)
    interpreter = folder / "bin" / "python"
    subprocess.run(
        [*uv, "pip", "install", "--quiet", "--python", interpreter, *packages], check=True
    )
    return interpreter


def start(
    python: Path, run_dir: Path, epochs: int, workers: int, index: int, ports: list[int]
) -> subprocess.Popen[str]:
    """Start one worker with the variables that Volcano's plugin would set in its pod."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    if workers > 1:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        task = {"type": "worker", "index": index}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    flags = ["--model=digits-net", "--dataset=digits", f"--epochs={epochs}", "--batch-size=32"]
    flags += ["--learning-rate=0.005", f"--run-dir={run_dir}"]
    return subprocess.Popen(
        [python, "-m", "examples.tensorflow", *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def ended(worker: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]]]:
    try:
        out, _ = worker.communicate(timeout=500)
    finally:
        worker.kill()
        worker.wait()
    return worker.returncode, [json.loads(line) for line in out.splitlines()]


def test_interrupted_run_of_two_workers_is_resumed_by_one_worker(
    python: Path, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    workers = [start(python, tmp_path, 10_000, 2, index, ports) for index in range(2)]
    newest = tmp_path / "checkpoints" / "checkpoint"
    deadline = time.monotonic() + 500
    while not newest.exists() and time.monotonic() < deadline:
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.2)
    # Only one worker gets the signal, and it is not the chief.
    workers[1].send_signal(signal.SIGTERM)
    (chief, events), (other, _) = ended(workers[0]), ended(workers[1])
    assert (chief, other) == (75, 75)
    assert events[0]["processes"] == 2
    done = sum(event["event"] == "epoch" for event in events)
    assert not list(tmp_path.glob(".worker-*"))

    code, events = ended(start(python, tmp_path, done + 2, 1, 0, []))
    assert code == 0
    assert events[0]["epoch"] == done >= 1
    assert events[-1]["event"] == "finished"
    assert events[-1]["accuracy"] > 0.85
    assert (tmp_path / "export" / "saved_model.pb").exists()


def test_unsupported_settings_are_rejected_before_tensorflow_is_imported(
    python: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [python, "-m", "examples.tensorflow", "--model=mnist-net", f"--run-dir={tmp_path}"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "set model to digits-net" in json.loads(done.stdout)["message"]
