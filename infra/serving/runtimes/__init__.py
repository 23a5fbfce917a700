"""Registry of runtimes, which are the server programs of inference services."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from infra.serving.runtimes.custom import Custom
from infra.serving.runtimes.mlserver import Mlserver
from infra.serving.runtimes.runtime import Runtime
from infra.serving.runtimes.torch import Torch
from infra.serving.runtimes.triton import Triton
from infra.serving.runtimes.vllm import Vllm

RuntimeName = Literal["torch", "vllm", "triton", "mlserver", "custom"]

RUNTIMES: Final[Mapping[RuntimeName, type[Runtime]]] = {
    "torch": Torch,
    "vllm": Vllm,
    "triton": Triton,
    "mlserver": Mlserver,
    "custom": Custom,
}


def read(name: RuntimeName, server: Mapping[str, Any]) -> Runtime:
    """Return a runtime with the settings of `server`; raise ValidationError if they are invalid."""
    return RUNTIMES[name].model_validate(dict(server))
