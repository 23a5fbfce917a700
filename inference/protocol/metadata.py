"""What a client can know about the server and its model."""

from typing import Any, Final

from inference.engine.interface import Served, TensorSpec

SERVER: Final = "gpu-platform-inference"
VERSION: Final = "0.1.0"
EXTENSIONS: Final = ("binary_tensor_data", "model_repository")


def server_metadata() -> dict[str, Any]:
    """GET /v2."""
    return {"name": SERVER, "version": VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(served: Served) -> dict[str, Any]:
    """The model's tensors, where it comes from, how good it is."""
    manifest = served.manifest
    return {
        "name": served.name,
        "versions": [served.version],
        "platform": f"pytorch_{served.backend}",
        "inputs": [_tensor(spec) for spec in served.inputs],
        "outputs": [_tensor(spec) for spec in served.outputs],
        "parameters": {
            "sha256": manifest.weights.sha256,
            "run": manifest.run,
            "architecture": manifest.model,
            "backend": served.backend,
            "classes": list(manifest.classes),
            "metrics": manifest.metrics,
            "settings": manifest.settings,
        },
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
