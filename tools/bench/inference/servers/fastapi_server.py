"""FastAPI alone: one request after another, without batching."""

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from tools.bench.inference.servers.served import JSON, PORT, load, sample_of

app = FastAPI()
compute = load()


class Sample(BaseModel):
    """JSON body with lists nested according to the sample's shape."""

    values: list[float] | list[list[list[float]]]


async def predict_raw(request: Request) -> Response:
    """Compute in the event loop: on one core, a thread would only add overhead."""
    batch = sample_of(await request.body())[None]
    return Response(compute(batch).tobytes(), media_type="application/octet-stream")


async def predict_json(sample: Sample) -> list[float]:
    """Compute in the event loop like `predict_raw`, but with JSON requests and responses."""
    row: list[float] = compute(np.asarray([sample.values], np.float32))[0].tolist()
    return row


app.post("/predict")(predict_json if JSON else predict_raw)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, access_log=False, log_level="warning")
