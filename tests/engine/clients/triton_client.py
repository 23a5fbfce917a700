"""Program that queries a model server with tritonclient and prints the responses as JSON.

It runs in a separate environment, without this project: triton_client.py PORT ADMIN_PORT IMAGES.npy
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

MODEL = "digits"
Responses = dict[str, Any]


def query(url: str, images: Any, binary: bool) -> Responses:
    with InferenceServerClient(url) as client:
        sent = InferInput("images", list(images.shape), "FP32")
        sent.set_data_from_numpy(images, binary_data=binary)
        names = ("probabilities", "class", "label")
        requested = [InferRequestedOutput(name, binary_data=binary) for name in names]
        options = {"outputs": requested, "request_id": "mine", "timeout": 20_000_000}
        result = client.infer(MODEL, [sent], **options)
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
            "error": shape_error(client, images),
        }


def shape_error(client: InferenceServerClient, images: Any) -> str:
    """Return the error of a request with a wrong shape."""
    wrong_shape = InferInput("images", [len(images), 64], "FP32")
    wrong_shape.set_data_from_numpy(images.reshape(-1, 64))
    try:
        client.infer(MODEL, [wrong_shape])
    except Exception as error:
        return str(error)
    return ""


def tensor(images: Any) -> InferInput:
    sent = InferInput("images", list(images.shape), "FP32")
    sent.set_data_from_numpy(images)
    return sent


def accepted(url: str, admin_url: str, images: Any) -> Responses:
    """Return the responses to the remaining calls that the server supports."""
    with InferenceServerClient(url) as client, InferenceServerClient(admin_url) as admin:
        admin.load_model(MODEL)
        pending = client.async_infer(MODEL, [tensor(images)])
        compressed = client.infer(MODEL, [tensor(images)], response_compression_algorithm="gzip")
        return {
            "server": client.get_server_metadata()["extensions"],
            "index": [model["state"] for model in admin.get_model_repository_index()],
            "async": pending.get_result().as_numpy("class").tolist(),
            "uncompressed": compressed.as_numpy("class").tolist(),
        }


def refusals(url: str, admin_url: str, images: Any) -> dict[str, list[str]]:
    """Return the status and message of every call that the server refuses."""
    with InferenceServerClient(url) as client, InferenceServerClient(admin_url) as admin:
        shared_input = InferInput("images", list(images.shape), "FP32")
        shared_input.set_shared_memory("region", images.nbytes)
        classes = InferRequestedOutput("label", class_count=2)
        shared_output = InferRequestedOutput("label")
        shared_output.set_shared_memory("region", 64)

        def infer(**options: Any) -> Callable[[], object]:
            return lambda: client.infer(MODEL, **{"inputs": [tensor(images)], **options})

        calls: dict[str, Callable[[], object]] = {
            "load on the client port": lambda: client.load_model(MODEL),
            "load with a configuration": lambda: admin.load_model(MODEL, config="{}"),
            "load another model": lambda: admin.load_model("other"),
            "unload": lambda: admin.unload_model(MODEL),
            "configuration": lambda: client.get_model_config(MODEL),
            "statistics": lambda: client.get_inference_statistics(MODEL),
            "statistics of all models": client.get_inference_statistics,
            "trace settings": lambda: client.get_trace_settings(MODEL),
            "server's trace settings": client.get_trace_settings,
            "update trace settings": lambda: client.update_trace_settings(settings={}),
            "log settings": client.get_log_settings,
            "update log settings": lambda: client.update_log_settings({}),
            "system shared memory": client.get_system_shared_memory_status,
            "register system shared memory": lambda: client.register_system_shared_memory(
                "region", "/region", 64
            ),
            "unregister system shared memory": client.unregister_system_shared_memory,
            "CUDA shared memory": client.get_cuda_shared_memory_status,
            "register CUDA shared memory": lambda: client.register_cuda_shared_memory(
                "region", b"handle", 0, 64
            ),
            "unregister CUDA shared memory": client.unregister_cuda_shared_memory,
            "gzip": infer(request_compression_algorithm="gzip"),
            "deflate": infer(request_compression_algorithm="deflate"),
            "input in shared memory": infer(inputs=[shared_input]),
            "output in shared memory": infer(outputs=[shared_output]),
            "classification": infer(outputs=[classes]),
            "sequence": infer(sequence_id=1, sequence_start=True),
            "priority": infer(priority=1),
            "custom parameter": infer(parameters={"temperature": 1}),
            "another version": infer(model_version="9"),
        }
        return {name: refusal(call) for name, call in calls.items()}


def refusal(call: Callable[[], object]) -> list[str]:
    """Return the status and message of a failed call, or an empty list if the call succeeds."""
    try:
        call()
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return []


def main() -> None:
    url, admin_url = (f"127.0.0.1:{port}" for port in sys.argv[1:3])
    images = np.load(sys.argv[3])
    answers = {
        "triton http": query(url, images, binary=True),
        "triton http json": query(url, images, binary=False),
        "triton accepted": accepted(url, admin_url, images),
        "triton refused": refusals(url, admin_url, images),
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
