"""LitServe server that multiplies by the number in its model: multiplier.py PORT."""

import os
import sys
from pathlib import Path
from typing import Any

import litserve


class Multiplier(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.factor = int((Path(os.environ["MODEL_PATH"]) / "factor.txt").read_text())

    def decode_request(self, request: dict[str, Any]) -> int:
        return int(request["input"])

    def predict(self, x: int) -> int:
        return x * self.factor

    def encode_response(self, output: int) -> dict[str, int]:
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(Multiplier(), accelerator="cpu")
    server.run(port=int(sys.argv[1]), generate_client_file=False)
