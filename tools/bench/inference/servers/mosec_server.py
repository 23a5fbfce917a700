"""mosec: an HTTP server in Rust that batches requests for a Python process."""

from typing import Any

import numpy as np
from mosec import Server, Worker

from tools.bench.inference.servers.served import JSON, load, sample_of
from tools.bench.inference.workloads import MAX_BATCH, MAX_DELAY_MS, Array


class Raw(Worker):  # type: ignore[misc]
    """Worker that receives and returns raw bytes."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.compute = load()

    def deserialize(self, data: bytes) -> Array:
        """Decode one sample."""
        return sample_of(data)

    def forward(self, data: list[Array]) -> list[Array]:
        """Compute a batch."""
        return list(self.compute(np.stack(data)))

    def serialize(self, data: Array) -> bytes:
        """Encode one output."""
        return data.tobytes()


class Json(Worker):  # type: ignore[misc]
    """Worker that receives and returns lists of numbers in JSON, mosec's default format."""

    def __init__(self) -> None:
        super().__init__()
        self.compute = load()

    def forward(self, data: list[Any]) -> list[list[float]]:
        """Compute a batch."""
        batch = np.asarray([one["values"] for one in data], np.float32)
        rows: list[list[float]] = self.compute(batch).tolist()
        return rows


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Json if JSON else Raw, num=1, max_batch_size=MAX_BATCH, max_wait_time=MAX_DELAY_MS
    )
    server.run()
