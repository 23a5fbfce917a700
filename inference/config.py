"""What a model server can be told, by environment variables with the prefix INFERENCE_.

Imports no torch: the stack validates a service's settings with this very class in the preview.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workload.configuration import ConfigurationError, DeviceName, problem_sentences

Backend = Literal["eager", "compile", "aotinductor", "pt2", "int8", "pruned"]

ENVIRONMENT_PREFIX: Final = "INFERENCE_"

OWN: Final = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"


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
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="sha256 of the weights, as the manifest has it: an export with others is not "
        "served; empty serves what is there",
    )
    host: str = Field(default="0.0.0.0", min_length=1, description="address to listen on")  # noqa: S104
    port: int = Field(default=8080, ge=1, le=65535, description="port to listen on")
    max_body_bytes: int = Field(
        default=16 * 2**20, ge=1024, le=2**31, description="larger requests are answered with 413"
    )
    body_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="longest time for a request's body to arrive",
    )
    max_buffered_bytes: int = Field(
        default=256 * 2**20,
        ge=1024,
        le=2**40,
        description="bodies of all requests that are being answered; beyond it they get 429",
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="HTTP connections; further ones wait to be accepted",
    )
    idle_seconds: int = Field(
        default=75,
        ge=1,
        le=86_400,
        description="connections on which no request begins for so long are closed; more than "
        "load balancers keep theirs",
    )
    request_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="deadline of a request that names none of its own",
    )
    api_keys_file: str = Field(
        default="",
        description="file of keys, one a line, plain or sha256:<hex>; empty: none is asked for",
    )
    tls_certificate: str = Field(
        default="", description="PEM file of the certificate chain; empty: no TLS"
    )
    tls_key: str = Field(default="", description="PEM file of its private key")
    tls_minimum: Literal["1.2", "1.3"] = Field(default="1.2", description="oldest version of TLS")
    request_log: Literal["none", "failures", "all"] = Field(
        default="failures",
        description="requests of which a line is logged; failures: 500 and above",
    )
    tracing_endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="where spans are sent by OTLP over HTTP, such as "
        "http://collector:4318/v1/traces; empty: no tracing",
    )
    tracing_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="share of requests that are traced where the caller has not decided",
    )
    device: DeviceName = Field(default="auto", description="auto takes a GPU where there is one")
    backend: Backend = Field(
        default="eager",
        description="eager, compile and aotinductor compute the weights; pt2, int8 and "
        "pruned are other forms in the export",
    )
    handler: str = Field(
        default="auto",
        pattern=rf"^(auto|{OWN})$",
        description="who decodes requests and encodes answers: auto takes what fits the export, "
        "or write package.module:Class",
    )
    own_model: str = Field(
        default="",
        pattern=rf"^({OWN})?$",
        description="the one package.module:factory that a manifest may name as its model",
    )
    workers: int = Field(
        default=1, ge=1, le=64, description="processes that compute, for each device"
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="that compute in each worker; 0 takes OMP_NUM_THREADS, or shares out the cores",
    )
    max_batch: int = Field(
        default=32, ge=1, le=4096, description="most samples that are computed at once"
    )
    max_delay_ms: float = Field(
        default=0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="longest that a worker which comes free under load waits for as many samples "
        "as there were before",
    )
    max_queue: int = Field(
        default=512, ge=1, le=2**20, description="samples that wait; more are answered with 429"
    )
    max_queue_bytes: int = Field(
        default=256 * 2**20,
        ge=2**16,
        le=2**40,
        description="of samples that wait; more get 429 as well",
    )
    hang_seconds: float = Field(
        default=60,
        gt=0,
        le=86400,
        allow_inf_nan=False,
        description="a worker that computes one batch for longer is replaced",
    )
    poll_seconds: float = Field(
        default=2, gt=0, le=300, allow_inf_nan=False, description="between two looks for the export"
    )
    notice_seconds: float = Field(
        default=3,
        ge=0,
        le=300,
        allow_inf_nan=False,
        description="after SIGTERM, requests are still taken for so long while being unready: "
        "load balancers need it to notice",
    )
    drain_seconds: int = Field(
        default=20,
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

    @field_validator("api_keys_file", "tls_certificate", "tls_key")
    @classmethod
    def _absolute_file(cls, value: str) -> str:
        if value and not PurePosixPath(value).is_absolute():
            raise ValueError("write an absolute path, such as /secrets/tls.key")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("TLS needs both tls_certificate and tls_key: write both, or neither")
        if self.max_buffered_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, less than max_body_bytes "
                f"{self.max_body_bytes}: write more"
            )
        return self

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
        raise ConfigurationError("; ".join(problem_sentences(error, written_as))) from None
