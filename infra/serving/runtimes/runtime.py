"""Interface of a runtime: the server program of an inference service.

A runtime is a module with one subclass of `Runtime`. The fields of the class are the keys that
a service accepts under `server`.
"""

import difflib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

Source = Literal["run", "url", "claim", "hub", "artifact", "image"]
"""Source of a model. `image`: the model is part of the image."""

LATENCY: Final = "inference_request_seconds_bucket"
REQUESTS: Final = "inference_requests_total"
QUEUE: Final = "inference_queue_depth"
IN_FLIGHT: Final = "inference_requests_in_flight"
READY: Final = "inference_ready"
"""Series that alerts, dashboards and autoscalers read."""

SUM_BY_POD: Final = "sum by (namespace, service, pod)"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Values that the stack determines for one version of a service."""

    model: str
    """Name of the model in requests."""
    path: str
    """Directory or URL of the model, or its name on the Hugging Face Hub."""
    port: int
    gpus: int = 0
    cpus: int = 1
    """CPU request in cores, rounded up."""
    revision: str | None = None
    """Commit of the model on the Hugging Face Hub."""
    digest: str | None = None
    tls: str | None = None
    """Directory with tls.crt and tls.key."""
    api_keys: str | None = None
    """File with API keys."""


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """HTTP paths and additional ports of a server."""

    live: str
    ready: str
    """Path of the readiness probe, in which {model} is the name of the model."""
    metrics: str | None = "/metrics"
    grpc_port: int | None = None
    metrics_port: int | None = None
    """None if the metrics are on the HTTP port."""
    probe_port: Literal["http", "metrics"] = "http"
    """Name of the port that answers probes."""


class Runtime(BaseModel, ABC):
    """A server program with its settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    sources: ClassVar[frozenset[Source]]
    """Model sources that the program supports."""
    export: ClassVar[str] = "export"
    """Subdirectory of a run from which the program loads the model."""
    managed: ClassVar[Mapping[str, str]] = {}
    """Settings that the stack determines.

    Maps each of these settings to the setting to use instead (in backticks) or to other advice. An
    empty string means that the setting must be omitted.
    """
    worker_arguments: ClassVar[tuple[str, ...]] = ()
    """Additional arguments for all pods of a replica except the first pod."""
    recordings: ClassVar[Mapping[str, str]] = {}
    """PromQL expressions for the stack's `inference_…` series that the program does not export."""

    max_latency: ClassVar[float] = math.inf
    """Upper bound (s) of the largest finite bucket of the latency histogram. Quantiles never exceed
    it."""

    @abstractmethod
    def command(self, launch: Launch) -> list[str]:
        """Return the command with its arguments."""

    @abstractmethod
    def environment(self, launch: Launch) -> dict[str, Any]:
        """Return the environment variables, in the form of `infra.pods.Pod.env`."""

    @property
    def nodes(self) -> int:
        """Number of pods per replica. The first pod answers requests."""
        return 1

    @property
    @abstractmethod
    def endpoints(self) -> Endpoints:
        """Paths and ports of the server."""

    def in_flight(self, labels: str) -> str | None:
        """Return a PromQL expression for the number of requests in flight.

        These requests are queued or being processed. `labels` selects the series. Return None if
        the program does not report the number.
        """
        return None

    @property
    def exports_in_flight(self) -> bool:
        """True if the program itself exports `IN_FLIGHT`, so that no recording rule creates it."""
        return self.in_flight("") == f"{IN_FLIGHT}{{}}"

    @property
    def stop_seconds(self) -> Mapping[str, float]:
        """Maximum time (s) of each phase between SIGTERM and the program's exit.

        The keys are the settings that limit the phases.
        """
        return {}

    def problem(self, gpus: int) -> str | None:
        """Return an error message if the settings do not match the number of GPUs per pod."""
        return None


class ProgramArguments(Runtime):
    """A runtime whose settings are the command-line arguments of one release of a program.

    Names are written with underscores. The value true becomes `--name` or, for an argument with a
    value, `--name=true`. A list becomes several values (see `repeated` and `json_lists`). A mapping
    becomes JSON.
    """

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    release: ClassVar[str]
    """Program and release that define the known arguments."""
    flags: ClassVar[Collection[str]] = ()
    """Arguments without a value."""
    options: ClassVar[Collection[str]]
    """Arguments with a value."""
    negation: ClassVar[str | None] = None
    """Prefix of a flag that is set to false. If None, the flag is omitted."""
    repeated: ClassVar[Collection[str]] = ()
    """Arguments that are repeated for each value of a list. Other arguments appear once, followed
    by all values."""
    json_lists: ClassVar[Collection[str]] = ()
    """Arguments that take a list as JSON."""

    unchecked: tuple[str, ...] = ()
    """Arguments of other releases, which are passed on unchanged."""

    @model_validator(mode="after")
    def _arguments_exist(self) -> Self:
        known = {*self.flags, *self.options}
        for name, value in (self.model_extra or {}).items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                advice = f": did you mean {close[0]!r}?" if close else "."
                raise ValueError(
                    f"{name} is not an argument of {self.release}{advice} Pass arguments of other "
                    f"releases as strings under `unchecked`, such as --{_flag_name(name)}"
                )
            if name in self.flags and not isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}, but it is a flag: set true or false")
            if value is None:
                raise ValueError(f"{name} is null: leave it out")
        return self

    def arguments(self) -> list[str]:
        """Return the command-line arguments for the settings."""
        found: list[str] = []
        for name, value in (self.model_extra or {}).items():
            found += self._flag(name, value) if name in self.flags else self._option(name, value)
        return [*found, *self.unchecked]

    def _flag(self, name: str, value: bool) -> list[str]:
        if value:
            return [f"--{_flag_name(name)}"]
        return [] if self.negation is None else [f"--{self.negation}{_flag_name(name)}"]

    def _option(self, name: str, value: Any) -> list[str]:
        option = f"--{_flag_name(name)}"
        if isinstance(value, list) and name not in self.json_lists:
            if name in self.repeated:
                return [f"{option}={_flag_value(each)}" for each in value]
            return [option, *map(_flag_value, value)]
        return [f"{option}={_flag_value(value)}"]


def _flag_name(name: str) -> str:
    return name.replace("_", "-")


def _flag_value(value: Any) -> str:
    if isinstance(value, bool | dict | list):
        return json.dumps(value)
    return str(value)
