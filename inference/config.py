"""Model server configuration, read from `INFERENCE_*` variables.

This module must not import torch, because previews of the stack import it to validate service
settings.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from textwrap import fill
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workload.configuration import ConfigurationError, DeviceName, Precision, problem_sentences

Backend = Literal["eager", "compile", "aotinductor", "pt2", "int8", "pruned"]
PROGRAMS: Final = ("pt2", "int8")
"""Backends that run exported programs. The export determines their device and precision."""

ENVIRONMENT_PREFIX: Final = "INFERENCE_"

IMPORT_PATH: Final = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"

ModelName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Size = Annotated[int, Field(ge=1024, le=2**31)]
"""Size in bytes."""


class InferenceConfig(BaseModel):
    """Configuration of one model server."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    model_name: ModelName
    """Name of the served model: /v2/models/<name>."""
    model_path: PurePosixPath
    """Directory of the export, with manifest.json and model.safetensors. It may be created
    later."""
    model_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Expected SHA-256 of the weights, as in the manifest. An export with different weights is not
    served. If empty, all weights are accepted."""
    host: str = Field(default="0.0.0.0", min_length=1)  # noqa: S104
    """Address to listen on."""
    port: Port = 8080
    """Port for clients."""
    admin_port: Port = 8081
    """Port for probes, metrics and model loading, served by a separate thread."""
    max_body_bytes: Size = 16 * 2**20
    """Maximum size (bytes) of a request body; larger ones are rejected with 413."""
    body_seconds: Seconds = 30.0
    """Maximum time (s) for a request body to arrive."""
    max_buffered_bytes: int = Field(default=256 * 2**20, ge=1024, le=2**40)
    """Maximum total size (bytes) of requests and unsent responses in memory; beyond it, requests
    are rejected with 429."""
    max_json_bytes: Size = 2 * 2**20
    """Maximum size (bytes) of the JSON in a request, and of the values that a response returns as
    JSON; send larger tensors in binary form."""
    max_output_bytes: Size = 64 * 2**20
    """Maximum size (bytes) of the outputs of a request; larger ones are rejected with 400. Outputs
    are also rejected if they exceed max_buffered_bytes * max_share_per_peer, minus the size of the
    request body."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)
    """Maximum number of client connections; beyond it, idle connections are closed."""
    max_share_per_peer: float = Field(default=0.5, gt=0, le=1)
    """Maximum share of max_connections and of max_buffered_bytes that one address may use. Set it
    to 1 if all clients connect through a gateway."""
    header_seconds: Seconds = 5.0
    """Maximum time (s) for the headers of a request to arrive, and for a new connection to send its
    first request."""
    min_bytes_per_second: int = Field(default=4096, ge=0, le=2**30)
    """Minimum rate (bytes/s) at which a client must send a body and receive a response."""
    stall_seconds: Seconds = 5.0
    """Time (s) over which the minimum rate is measured."""
    idle_seconds: int = Field(default=75, ge=1, le=86_400)
    """Time (s) after which a connection without a request is closed; keep it above the load
    balancer's idle timeout."""
    request_seconds: Seconds = 30.0
    """Default deadline (s) for requests that do not set one."""
    api_keys_file: str = ""
    """File with API keys, one per line, plain or sha256:<hex>. Empty disables authentication."""
    tls_certificate: str = ""
    """PEM file of the certificate chain. Empty disables TLS."""
    tls_key: str = ""
    """PEM file of the private key."""
    tls_minimum: Literal["1.2", "1.3"] = "1.2"
    """Minimum TLS version."""
    request_log: Literal["none", "failures", "all"] = "failures"
    """Requests to log: `none`, `failures` (5xx) or `all`."""
    tracing_endpoint: str = Field(default="", pattern=r"^(https?://.+)?$")
    """URL to which spans are exported with OTLP over HTTP, such as http://collector:4318/v1/traces.
    Empty disables tracing."""
    tracing_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of requests to trace if the caller makes no sampling decision."""
    device: DeviceName = "auto"
    """Device; `auto` uses a GPU if one is available."""
    backend: Backend = "eager"
    """Execution backend. `eager`, `compile` and `aotinductor` use the exported weights; `pt2`,
    `int8` and `pruned` use other artifacts of the export."""
    precision: Precision = "fp32"
    """Precision of the weights and the computation. `fp32` uses TF32 on a GPU; `bf16` and `fp16`
    are not available with the `pt2` and `int8` backends."""
    handler: str = Field(default="auto", pattern=rf"^(auto|{IMPORT_PATH})$")
    """Handler that decodes requests and encodes outputs: package.module:Class, or `auto` for the
    built-in handler that suits the export."""
    own_model: str = Field(default="", pattern=rf"^({IMPORT_PATH})?$")
    """The only package.module:factory that a manifest may name as its model. If empty, none
    is allowed."""
    workers: int = Field(default=1, ge=1, le=64)
    """Number of worker processes per device."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Compute threads per worker. 0 means OMP_NUM_THREADS or, if that is not set, an equal share
    of the cores."""
    max_batch: int = Field(default=32, ge=1, le=4096)
    """Maximum number of samples per batch."""
    max_delay_ms: float = Field(default=0, ge=0, le=1000)
    """Maximum time (ms) that a worker waits, under load, for more samples before its next batch.
    The wait ends early once as many new samples have arrived as were in the previous batch."""
    max_queue: int = Field(default=512, ge=1, le=2**20)
    """Maximum number of queued samples; requests beyond it are rejected with 429."""
    max_queue_bytes: int = Field(default=256 * 2**20, ge=2**16, le=2**40)
    """Maximum size (bytes) of queued samples; requests beyond it are rejected with 429."""
    hang_seconds: float = Field(default=60, gt=0, le=86400)
    """Maximum time (s) for one batch; a slower worker is killed and replaced."""
    poll_seconds: float = Field(default=2, gt=0, le=300)
    """Interval (s) between checks for the export."""
    notice_seconds: float = Field(default=3, ge=0, le=300)
    """Time (s) after SIGTERM during which the server is unready but still accepts requests, so that
    load balancers can react."""
    drain_seconds: int = Field(default=20, ge=1, le=3600)
    """Maximum time (s), after `notice_seconds`, to finish requests in flight and to stop the
    workers. Keep notice_seconds + drain_seconds below the pod's termination grace period."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(
                "got a boolean; quote the value (YAML reads yes/no/on/off as booleans)"
            )
        return value

    @field_validator("model_path")
    @classmethod
    def _absolute(cls, value: PurePosixPath) -> PurePosixPath:
        if not value.is_absolute() or ".." in value.parts:
            raise ValueError("use an absolute path without '..', such as /models/my-run/export")
        return value

    @field_validator("api_keys_file", "tls_certificate", "tls_key")
    @classmethod
    def _absolute_file(cls, value: str) -> str:
        if value and not PurePosixPath(value).is_absolute():
            raise ValueError("use an absolute path, such as /secrets/tls.key")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("TLS needs both tls_certificate and tls_key: set both, or neither")
        if self.max_bytes_per_peer < self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes * max_share_per_peer is {self.max_bytes_per_peer}, less than "
                f"max_body_bytes ({self.max_body_bytes}): increase max_buffered_bytes or "
                "max_share_per_peer"
            )
        if self.precision != "fp32" and self.backend in PROGRAMS:
            raise ValueError(
                f"precision {self.precision} is not available with the {self.backend} backend, "
                "which uses the precision of the export: set precision to fp32"
            )
        if self.port == self.admin_port:
            raise ValueError(f"port and admin_port are both {self.port}: use different ports")
        return self

    @property
    def max_bytes_per_peer(self) -> int:
        """Maximum number of buffered bytes for one address."""
        return int(self.max_buffered_bytes * self.max_share_per_peer)

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which `read_config` restores the fields that were set."""
        return {
            variable_of(name): str(getattr(self, name))
            for name in type(self).model_fields
            if name in self.model_fields_set
        }


def variable_of(field: str) -> str:
    """Return the environment variable of a field: `model_name` → `INFERENCE_MODEL_NAME`."""
    return ENVIRONMENT_PREFIX + field.upper()


def describe_variables() -> str:
    """Return one paragraph per environment variable, with its default and description."""
    paragraphs = []
    for name, field in InferenceConfig.model_fields.items():
        default = "required" if field.is_required() else f"default: {field.default!r}"
        text = fill(field.description or "", 78, initial_indent="    ", subsequent_indent="    ")
        paragraphs.append(f"  {variable_of(name)} ({default})\n{text}")
    return "\n".join(paragraphs)


def read_config(environment: Mapping[str, str]) -> InferenceConfig:
    """Read the configuration from environment variables, and ignore unrelated variables.

    Raise a ConfigurationError that lists every error under the name of its variable.
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
