"""Let a server double numbers, with KServe's SDK: kserve_doubled.py HTTP_PORT GRPC_PORT."""

import asyncio
import json
import sys
from typing import Any

import kserve
import numpy as np
from kserve.inference_client import RESTConfig

NUMBERS = np.array([[1.5, -2.0], [0.0, 8.0]], np.float32)


def request() -> Any:
    sent = kserve.InferInput("x", list(NUMBERS.shape), "FP32")
    sent.set_data_from_numpy(NUMBERS, binary_data=False)
    return kserve.InferRequest("digits", [sent])


async def main() -> None:
    url = f"http://127.0.0.1:{sys.argv[1]}"
    rest = kserve.InferenceRESTClient(RESTConfig(protocol="v2"))
    over_http = await rest.infer(url, request(), model_name="digits")
    grpc = kserve.InferenceGRPCClient(url=f"127.0.0.1:{sys.argv[2]}")
    over_grpc = await grpc.infer(request())
    answers = {
        name: response.outputs[0].as_numpy().tolist()
        for name, response in {"http": over_http, "grpc": over_grpc}.items()
    }
    print(json.dumps(answers))  # noqa: T201


asyncio.run(main())
