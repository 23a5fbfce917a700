"""Let a server double numbers, with tritonclient: triton_doubled.py HTTP_PORT GRPC_PORT."""

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

NUMBERS = np.array([[1.5, -2.0], [0.0, 8.0]], np.float32)


def doubled(api: Any, port: str, **options: Any) -> Any:
    client = api.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live()
    assert client.is_model_ready("digits")
    sent = api.InferInput("x", list(NUMBERS.shape), "FP32")
    sent.set_data_from_numpy(NUMBERS, **options)
    return client.infer("digits", [sent]).as_numpy("doubled").tolist()


answers = {
    # MLServer has no binary tensors over HTTP.
    "http": doubled(tritonclient.http, sys.argv[1], binary_data=False),
    "grpc": doubled(tritonclient.grpc, sys.argv[2]),
}
print(json.dumps(answers))  # noqa: T201
