"""LitServe with batching and its fast queue."""

from collections.abc import Sequence
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Depends, Request, Response

from tools.bench.inference.servers.served import JSON, PORT, load, sample_of
from tools.bench.inference.workloads import MAX_BATCH, MAX_DELAY_MS, Array


async def body_of(request: Request) -> bytes:
    """Return the body unparsed, so that JSON is not required."""
    return await request.body()


class Raw(litserve.LitAPI):  # type: ignore[misc]
    """API that receives and returns raw bytes."""

    def setup(self, device: str) -> None:
        """Load the model in the worker process."""
        self.compute = load()

    def decode_request(self, request: Annotated[bytes, Depends(body_of)]) -> Array:
        """Decode one sample."""
        return sample_of(request)

    def batch(self, inputs: Sequence[Array]) -> Array:
        """Join samples into a batch."""
        return np.stack(inputs)

    def predict(self, x: Array) -> Array:
        """Compute a batch."""
        return self.compute(x)

    def unbatch(self, output: Array) -> list[Array]:
        """Split a batch into its samples."""
        return list(output)

    def encode_response(self, output: Array) -> Response:
        """Encode one output."""
        return Response(output.tobytes(), media_type="application/octet-stream")


class Json(Raw):
    """API that receives and returns lists of numbers in JSON, LitServe's usual format."""

    # LitServe derives the request format from this annotation.
    def decode_request(self, request: dict[str, Any]) -> Array:  # type: ignore[override]
        """Decode one sample."""
        return np.asarray(request["values"], np.float32)

    def encode_response(self, output: Array) -> dict[str, Any]:
        """Encode one output."""
        return {"values": output.tolist()}


if __name__ == "__main__":
    api = (Json if JSON else Raw)(max_batch_size=MAX_BATCH, batch_timeout=MAX_DELAY_MS / 1000)
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True, timeout=False)
    server.run(
        host="127.0.0.1",
        port=PORT,
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
