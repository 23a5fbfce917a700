"""Program that queries a model server with KServe's client and prints the responses as JSON.

It runs in a separate environment, without this project: kserve_client.py PORT ADMIN_PORT IMAGES.npy
"""

import asyncio
import json
import sys
from typing import Any

import kserve
import numpy as np

MODEL = "digits"
Responses = dict[str, Any]


def kserve_request(images: Any, binary: bool) -> Any:
    sent = kserve.InferInput("images", list(images.shape), "FP32")
    sent.set_data_from_numpy(images, binary_data=binary)
    return kserve.InferRequest(MODEL, [sent], request_id="mine")


def parsed(response: Any) -> Responses:
    outputs = {output.name: output.as_numpy() for output in response.outputs}
    labels = outputs["label"].ravel()
    return {
        "id": response.id,
        "probabilities": outputs["probabilities"].tolist(),
        "classes": outputs["class"].ravel().tolist(),
        "labels": [str(v.decode() if isinstance(v, bytes) else v) for v in labels],
    }


async def kserve_rest(url: str, images: Any, binary: bool) -> Responses:
    async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2")) as client:
        response = await client.infer(url, kserve_request(images, binary), model_name=MODEL)
        ready = await client.is_model_ready(url, MODEL)
        wrong_shape = kserve_request(images.reshape(-1, 64), binary)
        try:
            await client.infer(url, wrong_shape, model_name=MODEL)
            error = ""
        except Exception as caught:
            error = str(caught)
        return {
            **parsed(response),
            "ready": ready,
            "error": error,
            "live": await client.is_server_live(url),
            "server ready": await client.is_server_ready(url),
            "explanation": await explanation(client, url),
        }


async def explanation(client: Any, url: str) -> str:
    """Return the error of `explain`, which exists only in protocol V1."""
    try:
        await client.explain(f"{url}/v1/models/{MODEL}:explain", MODEL, {"instances": []})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    url = f"http://127.0.0.1:{sys.argv[1]}"
    images = np.load(sys.argv[3])
    answers = {
        "kserve rest": asyncio.run(kserve_rest(url, images, binary=True)),
        "kserve rest json": asyncio.run(kserve_rest(url, images, binary=False)),
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
