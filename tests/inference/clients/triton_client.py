"""Asks a model server with tritonclient, and prints what it understood as JSON.

Runs in an environment of its own, without this project: triton.py HTTP_PORT GRPC_PORT IMAGES.npy
"""

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

MODEL = "digits"
Heard = dict[str, Any]


def ask(module: Any, url: str, images: Any, **binary: bool) -> Heard:
    """tritonclient's HTTP and gRPC have the same calls; only HTTP has a choice of `binary_data`."""
    with module.InferenceServerClient(url) as client:
        given = module.InferInput("images", list(images.shape), "FP32")
        given.set_data_from_numpy(images, **binary)
        names = ("probabilities", "class", "label")
        wanted = [module.InferRequestedOutput(name, **binary) for name in names]
        result = client.infer(MODEL, [given], outputs=wanted, request_id="mine", timeout=20_000_000)
        response = result.get_response()
        identity = response["id"] if isinstance(response, dict) else response.id
        unnamed = client.infer(MODEL, [given])
        metadata = client.get_model_metadata(MODEL)
        versions = metadata["versions"] if isinstance(metadata, dict) else metadata.versions
        client.load_model(MODEL)
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready() and client.is_model_ready(MODEL),
            "other": client.is_model_ready("other") if module is tritonclient.http else False,
            "id": identity,
            "versions": list(versions),
            "probabilities": result.as_numpy("probabilities").tolist(),
            "classes": unnamed.as_numpy("class").tolist(),
            "labels": [
                str(v.decode() if isinstance(v, bytes) else v) for v in result.as_numpy("label")
            ],
            "error": refused(module, client, images),
        }


def refused(module: Any, client: Any, images: Any) -> str:
    """What the client is told of a wrong shape."""
    wrong = module.InferInput("images", [len(images), 64], "FP32")
    wrong.set_data_from_numpy(images.reshape(-1, 64))
    try:
        client.infer(MODEL, [wrong])
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    http, grpc = (f"127.0.0.1:{port}" for port in sys.argv[1:3])
    images = np.load(sys.argv[3])
    heard = {
        "triton http": ask(tritonclient.http, http, images, binary_data=True),
        "triton http json": ask(tritonclient.http, http, images, binary_data=False),
        "triton grpc": ask(tritonclient.grpc, grpc, images),
    }
    print(json.dumps(heard))  # noqa: T201


if __name__ == "__main__":
    main()
