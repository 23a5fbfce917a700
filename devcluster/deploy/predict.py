"""A first prediction: a held-out digit, sent to the model server by Open Inference Protocol V2."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from devcluster.errors import DevclusterError

READY_TIMEOUT = 180.0


@dataclass(frozen=True)
class Prediction:
    """What the model said of one sample that it was not trained on."""

    url: str
    expected: int
    answer: int
    version: str

    @property
    def right(self) -> bool:
        """True where the model is not mistaken."""
        return self.answer == self.expected


def service_url(kubectl: Sequence[str], service: dict[str, Any]) -> str:
    """URL of a Service by its cluster address, which this machine has a route to.

    Raises DevclusterError where it is not there.
    """
    name, namespace = service["service"], service["namespace"]
    done = subprocess.run(
        [*kubectl, "get", "service", name, "-n", namespace, "-o", "json"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise DevclusterError(f"service {name} in {namespace}: {done.stderr.strip()}")
    spec = json.loads(done.stdout)["spec"]
    return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"


def wait_ready(
    url: str, model: str, run: str | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Waits until the server serves the model of the run; returns the model's metadata.

    Without a run, which is then known to the server alone, it may be any.
    """
    deadline = time.monotonic() + READY_TIMEOUT
    said = ""
    # trust_env: a proxy of the user's could not reach the cluster's addresses.
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as client:
        while True:
            try:
                answer = client.get(f"/v2/models/{model}")
                if answer.status_code == httpx.codes.OK:
                    metadata = dict(answer.json())
                    if run in (None, served_run(metadata)):
                        return metadata
                    said = f"it serves {served_run(metadata)} still"
                else:
                    said = answer.text.strip()
            except httpx.HTTPError as error:
                said = type(error).__name__
            report(said)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.5)
    raise DevclusterError(
        f"{url} did not serve {model} of {run or 'any run'} in {READY_TIMEOUT:.0f} s: {said}"
    )


def served_run(metadata: dict[str, Any]) -> str:
    """The run that the served model comes from."""
    return str(metadata.get("parameters", {}).get("run", ""))


def served_digest(metadata: dict[str, Any]) -> str:
    """SHA-256 of the served weights."""
    return str(metadata.get("parameters", {}).get("sha256", ""))


def predict(url: str, model: str, metadata: dict[str, Any]) -> Prediction:
    """Asks for the first held-out digit."""
    # Here, not above: scikit-learn takes a second to import, and only this needs it.
    from training.data import held_out_digits

    described = metadata["inputs"][0]
    channels, height, width = (int(size) for size in described["shape"][1:])
    images, labels = held_out_digits((channels, height, width))
    tensor = {
        "name": described["name"],
        "datatype": "FP32",
        "shape": [1, channels, height, width],
        "data": images[0].ravel().tolist(),
    }
    question = {"inputs": [tensor], "outputs": [{"name": "class"}]}
    answer = httpx.post(
        f"{url}/v2/models/{model}/infer", json=question, timeout=30.0, trust_env=False
    )
    if answer.status_code != httpx.codes.OK:
        raise DevclusterError(f"{url} answered {answer.status_code}: {answer.text}")
    outputs = {output["name"]: output for output in answer.json()["outputs"]}
    version = str(metadata["versions"][0])
    return Prediction(url, int(labels[0]), int(outputs["class"]["data"][0]), version)
