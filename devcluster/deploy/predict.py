"""Check of a newly deployed inference service: the server must classify a sample digit correctly.

Requests use the Open Inference Protocol V2.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from devcluster import DevclusterError

READY_TIMEOUT = 180.0
LABEL = 8
SAMPLE = (
    (0, 0, 1, 12, 12, 4, 1, 0),
    (0, 0, 13, 13, 13, 14, 8, 0),
    (0, 6, 15, 0, 0, 12, 7, 0),
    (0, 2, 16, 13, 12, 13, 1, 0),
    (0, 0, 0, 14, 16, 9, 0, 0),
    (0, 0, 6, 10, 2, 16, 0, 0),
    (0, 0, 11, 8, 5, 16, 0, 0),
    (0, 0, 3, 12, 16, 7, 0, 0),
)
"""The first test sample of the digits data set: 8 rows of 8 pixels with values from 0 to 16.

It is hard-coded, because reading the data set requires NumPy, which `make up` does not install.
"""


@dataclass(frozen=True)
class Prediction:
    """The model's prediction for a sample outside its training data."""

    label: int
    predicted: int

    @property
    def correct(self) -> bool:
        """True if the predicted class equals the sample's label."""
        return self.predicted == self.label

    def __str__(self) -> str:
        result = "correct" if self.correct else "WRONG"
        return f"test sample labeled {self.label}: predicted {self.predicted} ({result})"


class NoPredictionError(Exception):
    """The service cannot classify the sample digit. The message states the reason."""


def check_supported(service: dict[str, Any]) -> None:
    """Raise NoPredictionError unless a service uses the built-in server without TLS.

    The argument is an entry of the stack's `inference` output.
    """
    # The entry has no `runtime` if the last update used an earlier version of this project.
    if (runtime := service.get("runtime", "torch")) != "torch":
        raise NoPredictionError(f"the runtime is {runtime}")
    if service["url"].startswith("https:"):
        raise NoPredictionError("the server requires TLS")


def service_url(kubectl: Sequence[str], service: dict[str, Any]) -> str:
    """Return the URL of a Service. The URL contains the cluster IP, which this host can reach.

    Raises:
        DevclusterError: If the Service does not exist.
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


def wait_endpoint(
    kubectl: Sequence[str], service: dict[str, Any], report: Callable[[str], None]
) -> None:
    """Wait until a pod of a Service is ready.

    Raises:
        DevclusterError: If kubectl fails, or no pod is ready within `READY_TIMEOUT` seconds.
    """
    name, namespace = service["service"], service["namespace"]
    selection = [f"--selector=kubernetes.io/service-name={name}", f"--namespace={namespace}"]
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline:
        done = subprocess.run(
            [*kubectl, "get", "endpointslices", *selection, "--output=json"],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise DevclusterError(f"service {name} in {namespace}: {done.stderr.strip()}")
        slices = json.loads(done.stdout)["items"]
        found = [each for item in slices for each in item.get("endpoints") or []]
        if any(each.get("conditions", {}).get("ready") for each in found):
            return
        report(f"0 of {len(found)} pods are ready")
        time.sleep(0.2)
    raise DevclusterError(
        f"service {name} in {namespace}: no pod was ready within {READY_TIMEOUT:.0f} s; see "
        f"`kubectl describe pods --namespace {namespace}`"
    )


def wait_ready(
    url: str, model: str, run: str | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Wait until the server serves the model of a run, and return the model's metadata.

    If `run` is None, any run is accepted.

    Raises:
        NoPredictionError: If the server requires an API key.
        DevclusterError: If the model is not served within `READY_TIMEOUT` seconds.
    """
    deadline = time.monotonic() + READY_TIMEOUT
    status = ""
    # trust_env=False: a proxy from the user's environment could not reach cluster IPs.
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as client:
        while True:
            try:
                response = client.get(f"/v2/models/{model}")
                if response.status_code == httpx.codes.OK:
                    metadata = dict(response.json())
                    if run in (None, served_run(metadata)):
                        return metadata
                    status = f"still serving {served_run(metadata)}"
                elif response.status_code == httpx.codes.UNAUTHORIZED:
                    raise NoPredictionError("the server requires an API key")
                else:
                    status = response.text.strip()
            except httpx.HTTPError as error:
                status = type(error).__name__
            report(status)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
    raise DevclusterError(
        f"{url} did not serve {model} of {run or 'any run'} within {READY_TIMEOUT:.0f} s: {status}"
    )


def served_run(metadata: dict[str, Any]) -> str:
    """Return the run from which the served model was exported."""
    return str(metadata.get("parameters", {}).get("run", ""))


def served_digest(metadata: dict[str, Any]) -> str:
    """Return the SHA-256 of the served weights."""
    return str(metadata.get("parameters", {}).get("sha256", ""))


def predict(url: str, model: str, metadata: dict[str, Any]) -> Prediction:
    """Request a prediction for the first test sample of the digits data set.

    Raises:
        NoPredictionError: If the model does not classify digits in images of at least 8 x 8 pixels.
        DevclusterError: If the server does not respond, or responds with an error.
    """
    model_input = metadata["inputs"][0]
    outputs = [output["name"] for output in metadata["outputs"]]
    if len(model_input["shape"]) != 4 or "class" not in outputs:
        raise NoPredictionError("the model does not classify images")
    if metadata["parameters"]["classes"] != [str(digit) for digit in range(10)]:
        raise NoPredictionError("the model does not classify digits")
    channels, height, width = (int(size) for size in model_input["shape"][1:])
    tensor = {
        "name": model_input["name"],
        "datatype": "FP32",
        "shape": [1, channels, height, width],
        "data": _pixels(channels, height, width),
    }
    request = {"inputs": [tensor], "outputs": [{"name": "class"}]}
    try:
        response = httpx.post(
            f"{url}/v2/models/{model}/infer", json=request, timeout=30.0, trust_env=False
        )
    except httpx.HTTPError as error:
        raise DevclusterError(
            f"{url} did not return a prediction: {type(error).__name__}: {error}"
        ) from error
    if response.status_code != httpx.codes.OK:
        raise DevclusterError(f"{url} responded with {response.status_code}: {response.text}")
    results = {output["name"]: output for output in response.json()["outputs"]}
    return Prediction(LABEL, int(results["class"]["data"][0]))


def _pixels(channels: int, height: int, width: int) -> list[float]:
    """Return the sample, scaled to a model's input shape in the same way as in `training.data`."""
    factor = min(height, width) // len(SAMPLE)
    if factor < 1:
        raise NoPredictionError(f"a digit does not fit into {height} x {width} pixels")
    plane = [[0.0] * width for _ in range(height)]
    top, left = ((size - factor * len(SAMPLE)) // 2 for size in (height, width))
    for row in range(factor * len(SAMPLE)):
        for column in range(factor * len(SAMPLE)):
            plane[top + row][left + column] = SAMPLE[row // factor][column // factor] / 16
    return [pixel for row in plane for pixel in row] * channels
