"""Third-party servers, started with each runtime's command and called by third-party clients."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from infra.settings.inference.service import InferenceServiceSettings
from tests.infra.serving.examples import container, serving
from tests.training.programs import free_port
from tools.environments import environment, run
from training.config import TrainingConfig
from training.data import Dataset, load
from training.export import write_export
from workload.models import build
from workload.models.gpt import Gpt

SENTENCE = "The quick brown fox jumps over the lazy dog. "
HERE = Path(__file__).parent
SERVERS = HERE / "servers"


def trained(folder: Path) -> tuple[Dataset, Gpt]:
    """Return the data set and a model that was trained on it for a few steps."""
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "a.txt").write_text(SENTENCE * 60)
    options = {"context": 64, "layers": 2, "heads": 2, "width": 48}
    data = load("text", folder, (64,), seed=0)
    torch.manual_seed(0)
    model = build("gpt", options, data.outputs, data.shape)
    assert isinstance(model, Gpt)
    inputs, targets = map(torch.from_numpy, data.train.batch(np.arange(16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        loss = cross_entropy(model(inputs.long()).flatten(0, 1), targets.long().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return data, model.eval()


@torch.no_grad()
def completion(model: Gpt, prompt: str, count: int) -> str:
    """Return the most probable continuation."""
    tokens = torch.tensor([list(prompt.encode())])
    for _ in range(count):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return bytes(tokens[0, -count:].tolist()).decode()


@contextmanager
def started(folder: Path, bin_directory: Path, **service: Any) -> Iterator[Mapping[str, int]]:
    """Start what the pod of a service would start; yield its ports when its probe succeeds.

    `folder/models` is /models, `folder/tmp` is /tmp, and ports of the pod become free ones. At the
    end the server gets SIGTERM and must end within the time that the settings promise.
    """
    described = serving(job=None, **service)
    found = container(described)
    ports = {each["name"]: free_port() for each in found["ports"]}
    replaced = {str(each["containerPort"]): str(ports[each["name"]]) for each in found["ports"]}
    for name in ("models", "tmp", "working"):
        (folder / name).mkdir(exist_ok=True)

    def localize(text: str) -> str:
        if text in replaced:
            return replaced[text]
        for inside in ("/models", "/tmp"):
            # The checkout itself may be in /tmp, and its paths must not change.
            if Path(text).is_relative_to(SERVERS):
                return text
            if text == inside or text.startswith(f"{inside}/"):
                return f"{folder}{text}"
        return text

    env = {each["name"]: localize(each["value"]) for each in found["env"] if "value" in each}
    command = [localize(part) for part in found["command"]]
    for name, value in env.items():
        command = [part.replace(f"$({name})", value) for part in command]
    path = {"PATH": f"{bin_directory}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**path, **env},
            cwd=folder / "working",
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        probe = found["readinessProbe"]["httpGet"]
        _wait(process, f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}", folder / "log")
        yield ports
        assert list((folder / "working").iterdir()) == [], "the root filesystem is read-only"
        process.send_signal(signal.SIGTERM)
        process.wait(_seconds_to_stop(described.service))
    finally:
        # When a container's first process exits, the kernel kills the others.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _seconds_to_stop(service: InferenceServiceSettings) -> float:
    return service.grace_seconds - service.pre_stop_seconds


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    pytest.fail(f"{url} is not ready: {log.read_text()[-3000:]}")


@pytest.fixture
def mlserver(tmp_path: Path) -> Iterator[Mapping[str, int]]:
    (tmp_path / "models" / "doubler").mkdir(parents=True)
    with started(
        tmp_path,
        environment("bench-mlserver").parent,
        runtime="mlserver",
        source={"claim": {"name": "checkpoints", "path": "doubler"}},
        server={"implementation": "doubler.Doubler"},
        env={"PYTHONPATH": str(SERVERS)},
    ) as ports:
        yield ports


def test_mlserver_responds_to_tritonclient_and_kserve_over_http_and_grpc(
    mlserver: Mapping[str, int],
) -> None:
    python = environment("clients")
    expected = np.array([[1.5, -2.0], [0.0, 8.0]], np.float32) * 2
    for program in ("triton_doubled.py", "kserve_doubled.py"):
        client_command = [
            str(python),
            str(SERVERS / program),
            str(mlserver["http"]),
            str(mlserver["grpc"]),
        ]
        answers = json.loads(run(client_command).splitlines()[-1])
        assert answers.keys() == {"http", "grpc"}
        for way, doubled in answers.items():
            assert np.allclose(doubled, expected), (program, way)


def test_mlserver_metrics_include_the_recorded_series(
    mlserver: Mapping[str, int],
) -> None:
    url = f"http://127.0.0.1:{mlserver['http']}/v2/models/digits"
    assert httpx.get(url, timeout=60).status_code == 200
    text = httpx.get(f"http://127.0.0.1:{mlserver['metrics']}/metrics", timeout=60).text
    for series in (
        "rest_server_requests_total{",
        "rest_server_request_duration_seconds_bucket{",
        "rest_server_requests_in_progress{",
    ):
        assert series in text
    assert 'status_code="200"' in text


@pytest.mark.timeout(400)
def test_openai_client_streams_from_the_exported_gpt(tmp_path: Path) -> None:
    python = environment("hugging-face", inherits=True)
    data, model = trained(tmp_path)
    values = {"model": "gpt", "dataset": "text", "model_options": {"context": model.context}}
    folder = tmp_path / "models" / "gpt-0123abcd" / "export"
    write_export(folder, model, TrainingConfig.model_validate(values), data, {})
    expected = completion(model, "The quick", 12)
    with started(
        tmp_path,
        python.parent,
        runtime="custom",
        run="gpt-0123abcd",
        server={
            "command": [
                "transformers",
                "serve",
                "$(MODEL_PATH)/huggingface",
                "--host",
                "0.0.0.0",  # noqa: S104
                "--port",
                "$(PORT)",
            ],
            "metrics": None,
        },
    ) as ports:
        client_command = [str(python), str(SERVERS / "openai_stream.py"), str(ports["http"])]
        answer = json.loads(
            run([*client_command, str(folder / "huggingface"), "The quick"]).splitlines()[-1]
        )
    assert answer["text"] == expected
    assert "".join(answer["parts"]) == expected
    assert len(answer["parts"]) > 2


def test_custom_litserve_server_receives_its_model_and_port(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "factor.txt").write_text("7")
    with started(
        tmp_path,
        environment("bench-litserve").parent,
        runtime="custom",
        source={"claim": {"name": "checkpoints"}},
        server={"command": ["python", str(SERVERS / "multiplier.py"), "$(PORT)"], "metrics": None},
    ) as ports:
        url = f"http://127.0.0.1:{ports['http']}/predict"
        assert httpx.post(url, json={"input": 6}, timeout=20).json() == {"output": 42}
