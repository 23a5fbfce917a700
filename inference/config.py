"""What a model server can be told, by environment variables with the prefix INFERENCE_.

Imports no torch: the stack validates a service's settings with this very class in the preview.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from training.config import ConfigurationError, DeviceName, plain_errors

ENVIRONMENT_PREFIX: Final = "INFERENCE_"


class InferenceConfig(BaseModel):
    """One model server. `model_path` is the folder that a training run exports to."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model_name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$",
        description="name under which the model is served: /v2/models/<name>",
    )
    model_path: PurePosixPath = Field(
        description="folder with manifest.json and model.safetensors; may appear later"
    )
    model_sha256: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="sha256 of the weights, as the manifest has it: an export with others is not "
        "served; empty serves what is there",
    )
    host: str = Field("0.0.0.0", min_length=1, description="address to listen on")  # noqa: S104
    port: int = Field(8080, ge=1, le=65535, description="port to listen on")
    max_body_bytes: int = Field(
        16 * 2**20, ge=1024, le=2**31, description="larger requests are answered with 413"
    )
    device: DeviceName = Field("auto", description="auto takes a GPU where there is one")
    poll_seconds: float = Field(
        2, gt=0, le=300, allow_inf_nan=False, description="between two looks for the export"
    )
    notice_seconds: float = Field(
        3,
        ge=0,
        le=300,
        allow_inf_nan=False,
        description="after SIGTERM, requests are still taken for so long while being unready: "
        "load balancers need it to notice",
    )
    drain_seconds: int = Field(
        20,
        ge=1,
        le=3600,
        description="longest wait after that for requests in flight; keep the sum of both below "
        "the pod's termination grace period",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("a truth value cannot be used here")
        return value

    @field_validator("model_path")
    @classmethod
    def _absolute(cls, value: PurePosixPath) -> PurePosixPath:
        if not value.is_absolute() or ".." in value.parts:
            raise ValueError("write an absolute path without '..', such as /models/my-run/export")
        return value

    def to_environment(self) -> dict[str, str]:
        """Environment variables that give this configuration again; only fields that were set."""
        return {
            variable_of(name): str(getattr(self, name))
            for name in type(self).model_fields
            if name in self.model_fields_set
        }


def variable_of(field: str) -> str:
    """`model_name` → `INFERENCE_MODEL_NAME`."""
    return ENVIRONMENT_PREFIX + field.upper()


def read_config(environment: Mapping[str, str]) -> InferenceConfig:
    """Read a server's configuration; variables that are not ours are left alone.

    Raises ConfigurationError that lists every mistake under its variable's name.
    """
    written_as = {name: variable_of(name) for name in InferenceConfig.model_fields}
    values = {
        name: environment[variable]
        for name, variable in written_as.items()
        if variable in environment
    }
    try:
        return InferenceConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("; ".join(plain_errors(error, written_as))) from None
