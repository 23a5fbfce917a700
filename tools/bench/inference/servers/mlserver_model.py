"""MLServer with adaptive batching."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from tools.bench.inference.servers.served import JSON, load, sample_of


class Model(MLModel):  # type: ignore[misc]
    """Model for V2 over REST.

    Raw tensors are base64-encoded, because MLServer does not support binary tensors.
    """

    async def load(self) -> bool:
        """Load the model in the server process."""
        self.compute = load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Compute a batch that MLServer has assembled from several requests."""
        tensor = payload.inputs[0]
        if JSON:
            batch = NumpyCodec.decode_input(tensor).astype(np.float32, copy=False)
            output = NumpyCodec.encode_output("probabilities", self.compute(batch))
        else:
            batch = np.stack([sample_of(body) for body in Base64Codec.decode_input(tensor)])
            rows = [row.tobytes() for row in self.compute(batch)]
            output = Base64Codec.encode_output("probabilities", rows, use_bytes=False)
        return InferenceResponse(model_name=self.name, outputs=[output])
