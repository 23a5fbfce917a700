"""Models and outputs for tests that run without an engine."""

import numpy as np

from inference.engine.interface import Answer, Served, TensorSpec
from workload.manifest import Manifest, Weights

MANIFEST = Manifest(
    model="digits-net",
    input_shape=(1, 2, 2),
    classes=("no", "yes"),
    metrics={"accuracy": 0.75},
    weights=Weights(size=1, sha256="ab" * 32),
    torch_version="2",
)
SERVED = Served(
    name="digits",
    manifest=MANIFEST,
    backend="eager",
    inputs=(TensorSpec("images", "FP32", (-1, 1, 2, 2)),),
    outputs=(
        TensorSpec("probabilities", "FP32", (-1, 2)),
        TensorSpec("class", "INT64", (-1,)),
        TensorSpec("label", "BYTES", (-1,)),
    ),
)


def engine_answer(*probabilities: list[float]) -> Answer:
    """Return the engine's output for samples with these probabilities."""
    values = np.array(probabilities, np.float32)
    best = values.argmax(1)
    labels = np.array([b"no", b"yes"], np.object_)[best]
    outputs = {"probabilities": values, "class": best, "label": labels}
    return Answer(outputs, SERVED, queue_seconds=0.0, compute_seconds=0.0, batch=len(values))


def model_with_inputs(*inputs: TensorSpec) -> Served:
    """Return a model with these inputs."""
    return Served("other", MANIFEST, "eager", inputs, (TensorSpec("sum", "FP64", (-1,)),))
