"""LitServe with batches and its fast queue."""

from collections.abc import Sequence
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Depends, Request, Response

from tools.bench.inference.servers.served import JSON, PORT, load, sample_of
from tools.bench.inference.workloads import MAX_BATCH, MAX_DELAY_MS, Array


async def body_of(request: Request) -> bytes:
    """Unread, so that JSON is not asked for."""
    return await request.body()


class Raw(litserve.LitAPI):  # type: ignore[misc]
    """Bytes in and out."""

    def setup(self, device: str) -> None:
        """In the process that computes."""
        self.compute = load()

    def decode_request(self, request: Annotated[bytes, Depends(body_of)]) -> Array:
        """One sample."""
        return sample_of(request)

    def batch(self, inputs: Sequence[Array]) -> Array:
        """Samples to a batch."""
        return np.stack(inputs)

    def predict(self, x: Array) -> Array:
        """A batch."""
        return self.compute(x)

    def unbatch(self, output: Array) -> list[Array]:
        """A batch to its samples."""
        return list(output)

    def encode_response(self, output: Array) -> Response:
        """One answer."""
        return Response(output.tobytes(), media_type="application/octet-stream")


class Json(Raw):
    """Its usual form: lists of numbers."""

    # LitServe reads the form of a request from this annotation.
    def decode_request(self, request: dict[str, Any]) -> Array:  # type: ignore[override]
        """One sample."""
        return np.asarray(request["values"], np.float32)

    def encode_response(self, output: Array) -> dict[str, Any]:
        """One answer."""
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
