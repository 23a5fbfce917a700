"""Query a model server with tritonclient, and print the answers as JSON.

Runs in an environment of its own, without this project: triton_client.py PORT IMAGES.npy
"""

import json
import sys
from typing import Any

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

MODEL = "digits"
Heard = dict[str, Any]


def ask(url: str, images: Any, binary: bool) -> Heard:
    with InferenceServerClient(url) as client:
        sent = InferInput("images", list(images.shape), "FP32")
        sent.set_data_from_numpy(images, binary_data=binary)
        names = ("probabilities", "class", "label")
        wanted = [InferRequestedOutput(name, binary_data=binary) for name in names]
        result = client.infer(MODEL, [sent], outputs=wanted, request_id="mine", timeout=20_000_000)
        unnamed = client.infer(MODEL, [sent])
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready() and client.is_model_ready(MODEL),
            "other": client.is_model_ready("other"),
            "id": result.get_response()["id"],
            "versions": client.get_model_metadata(MODEL)["versions"],
            "probabilities": result.as_numpy("probabilities").tolist(),
            "classes": unnamed.as_numpy("class").tolist(),
            "labels": [
                str(v.decode() if isinstance(v, bytes) else v) for v in result.as_numpy("label")
            ],
            "error": refused(client, images),
        }


def refused(client: InferenceServerClient, images: Any) -> str:
    """Return the error for a wrong shape."""
    wrong = InferInput("images", [len(images), 64], "FP32")
    wrong.set_data_from_numpy(images.reshape(-1, 64))
    try:
        client.infer(MODEL, [wrong])
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    url = f"127.0.0.1:{sys.argv[1]}"
    images = np.load(sys.argv[2])
    answers = {
        "triton http": ask(url, images, binary=True),
        "triton http json": ask(url, images, binary=False),
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
