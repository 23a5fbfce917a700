"""BentoML with adaptive batching."""

import functools
from typing import Annotated, Any

import bentoml
import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, WithJsonSchema

from tools.bench.inference.servers.served import JSON, PORT, load, sample_of
from tools.bench.inference.workloads import MAX_BATCH, MAX_QUEUE


def _batch_of_one(body: Any) -> Any:
    return sample_of(body)[None] if isinstance(body, bytes) else body


Raw = Annotated[
    NDArray[np.float32],
    BeforeValidator(_batch_of_one),
    WithJsonSchema({"type": "string", "format": "binary"}),
]

batched = functools.partial(bentoml.api, batchable=True, max_batch_size=MAX_BATCH)
"""max_latency_ms keeps its default. With lower values, BentoML returned 503 below its capacity."""


@bentoml.service(
    workers=1,
    traffic={"timeout": 30, "max_concurrency": MAX_QUEUE},
    http={"host": "127.0.0.1", "port": PORT},
    logging={"access": {"enabled": False}},
)
class Model:
    """A service that handles HTTP and runs the model in one process, which is BentoML's default."""

    def __init__(self) -> None:
        self.compute = load()

    if JSON:

        @batched()
        def predict(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
            """Run the model on a batch; the first dimension indexes the samples."""
            return self.compute(np.asarray(values, np.float32))

    else:

        @batched()
        def predict(self, batch: Raw, /) -> NDArray[np.float32]:
            """Run the model on a batch of raw bytes."""
            return self.compute(batch)
