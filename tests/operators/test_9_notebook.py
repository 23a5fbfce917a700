"""A notebook in a pod of a real node, in a browser: used, suspended when idle, and resumed.

The browser reaches it through a real gateway first, and then through `kubectl port-forward`.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from devcluster.paths import CHECKOUT
from tests.cluster.platform import Platform, await_, kill_all
from tests.operators import gateway
from tests.operators.browser import answers, chromium, wait
from tests.training.programs import free_port

TOKEN = "c0ffee5ea5"
PATH = "/notebooks/anna"
PAGE = (CHECKOUT / "docs/notebooks.md").read_text()
_, EMBEDDED = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def clear(config: dict[str, Any]) -> None:
    """Remove the job and the service of the dev stack."""
    config["gpu-platform:training"]["jobs"] = {}
    config["gpu-platform:inference"]["services"] = {}
    config["gpu-platform:images"]["workloads"].pop("inference")


def add(config: dict[str, Any]) -> None:
    """Add the page's notebook, with a route, that is suspended after a minute."""
    page = yaml.safe_load(EMBEDDED)
    images, volcano, training = (
        f"gpu-platform:{name}" for name in ("images", "volcano", "training")
    )
    config[images]["workloads"] |= page[images]["workloads"]
    config[volcano]["priority_classes"] |= page[volcano]["priority_classes"]
    config[training] = page[training]
    config[training]["jobs"]["anna"]["notebook"] |= {
        "idle_minutes": 1,
        "route": {
            "gateway": {"name": gateway.GATEWAY, "namespace": gateway.NAMESPACE},
            "path": PATH,
        },
    }


def pods(real: Platform) -> list[dict[str, Any]]:
    """Return the pods of the notebook that are ready."""
    return [
        pod
        for pod in real.pods(real.run_name("anna"))
        if any(status.get("ready") for status in pod["status"].get("containerStatuses", ()))
    ]


@contextlib.contextmanager
def forwarded(real: Platform) -> Iterator[str]:
    """Yield the notebook's URL on loopback."""
    port = free_port()
    await_(lambda: bool(pods(real)), "a ready notebook")
    (pod,) = pods(real)
    command = ["kubectl", "port-forward", "-n", "ml-dev", pod["metadata"]["name"], f"{port}:8888"]
    process = subprocess.Popen(
        command, env=real.shell_environment, stdout=subprocess.DEVNULL, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}{PATH}"
        await_(lambda: answers(f"{url}/api"), "a response from JupyterLab")
        yield url
    finally:
        os.kill(process.pid, signal.SIGTERM)
        kill_all(process)


@dataclass
class Notebook:
    """The platform with a notebook, and the notebook's URL at the gateway."""

    platform: Platform
    url: str


@pytest.fixture(scope="module")
def notebook(real: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    real.reset()
    real.edit(clear)
    real.make("up")
    text = "kubectl create secret generic anna --namespace ml-dev --from-literal=token"
    real.shell(f"{text}={TOKEN}")
    real.edit(add)
    with gateway.running(real, tmp_path_factory.mktemp("gateway")) as url:
        output = real.make("up")
        assert re.search(r"anna-\w+ \(1 x 1 GPU, notebook\)", output)
        yield Notebook(real, f"{url}{PATH}")


def test_a_notebook_is_used_suspended_and_resumed(
    notebook: Notebook, checkpoints: Path, tmp_path: Path
) -> None:
    real = notebook.platform
    run = real.run_name("anna")
    file = checkpoints / "anna" / "Untitled.ipynb"
    await_(lambda: answers(f"{notebook.url}/api"), "a response from JupyterLab")
    for path in ("kernels", "contents", "terminals"):
        refused = httpx.get(f"{notebook.url}/api/{path}", timeout=60, trust_env=False)
        assert refused.status_code == httpx.codes.FORBIDDEN
    with chromium(tmp_path / "first", notebook.url, TOKEN) as browser:
        browser.log_in()
        browser.click('.jp-LauncherCard[data-category="Notebook"]')
        browser.run("import torch; print(torch.arange(3) + 1)")
        wait(lambda: browser.has("tensor([1, 2, 3])", ".jp-OutputArea-output"), "the tensor")
        browser.run("!kubectl version --client; python3 -m gpu_platform run --help | head -1")
        wait(lambda: browser.has("Client Version", ".jp-OutputArea-output"), "kubectl")
        wait(lambda: browser.has("usage: python -m gpu_platform", ".jp-OutputArea-output"), "help")
        browser.save()
        browser.click(".jp-Dialog .jp-mod-accept")
        wait(lambda: file.exists() and "tensor([1, 2, 3])" in file.read_text(), "the file")

    def is_suspended() -> bool:
        job = real.kubectl("get", "jobs.batch.volcano.sh", run, "-n", "ml-dev")
        return bool(job["status"]["state"]["phase"] == "Aborted")

    await_(is_suspended, "a suspension")
    await_(lambda: not pods(real), "free GPUs")
    (queue,) = real.kubectl("get", "podgroups", "-n", "ml-dev")["items"] or [{}]
    assert queue.get("status", {}).get("phase") != "Running", json.dumps(queue)
    real.shell(f"python -m gpu_platform resume {run} --namespace ml-dev")
    with (
        forwarded(real) as url,
        chromium(tmp_path / "second", url, TOKEN) as browser,
    ):
        browser.log_in("/lab/tree/Untitled.ipynb")
        wait(lambda: browser.has("tensor([1, 2, 3])", ".jp-OutputArea-output"), "the file")
