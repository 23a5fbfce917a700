"""MLServer model that doubles its input."""

from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Doubler(MLModel):
    async def predict(self, payload: Any) -> Any:
        (tensor,) = payload.inputs
        output = NumpyCodec.encode_output("doubled", NumpyCodec.decode_input(tensor) * 2)
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=[output])
