"""torchtitan as the program of a job, with options checked against the pinned version."""

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field, model_validator

from infra.settings.types import Port, Settings

if TYPE_CHECKING:
    from jsonschema import ValidationError

PROGRAM: Final = "training.titan"

_DEGREES: Final = (
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "context_parallel_degree",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "expert_parallel_degree",
)


@lru_cache
def released() -> dict[str, Any]:
    """Return the modules, configurations and options of the pinned torchtitan version."""
    content: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
    return content


class TorchtitanSettings(Settings):
    """Settings of a job that runs torchtitan instead of this repository's training program."""

    module: str = Field(description="torchtitan's module for the model, such as llama3.")
    config: str = Field(description="Configuration of the module, such as llama3_8b.")
    options: dict[str, Any] = Field(
        default={},
        description="Options that differ from the configuration, by section. The stack decides "
        "where the run, its checkpoints and its export are stored.",
    )
    metrics_port: Port | None = Field(
        default=None, description="Port for Prometheus. If null, no metrics are served."
    )

    @model_validator(mode="after")
    def _is_released(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("; it ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        modules = released()["modules"]
        if self.module not in modules:
            yield f"sets module to {self.module!r}, which {_unknown(self.module, modules)}"
        elif self.config not in modules[self.module]:
            known = modules[self.module]
            yield f"sets config to {self.config!r}, which {_unknown(self.config, known)}"
        else:
            # Imported here because the import is slow, and few stacks use torchtitan.
            import jsonschema

            schema = {"$ref": self._config["$ref"], "$defs": released()["$defs"]}
            for error in jsonschema.Draft202012Validator(schema).iter_errors(self.options):
                yield _sentence(error)

    @property
    def _config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = released()["modules"][self.module][self.config]
        return config

    def size_problem(self, processes: int) -> str | None:
        """Return an error message if the degrees of parallelism do not fit the number of processes.

        The product of all degrees except expert_parallel_degree must equal the number of processes.
        expert_parallel_degree must divide the product of the shard, context and tensor degrees. A
        shard degree of -1 uses all remaining processes.
        """
        config = self._config["defaults"]["parallelism"]
        configured = self.options.get("parallelism", {})
        replicas, shards, context, tensor, stages, experts = degrees = [
            configured.get(name, config[name]) for name in _DEGREES
        ]
        others = max(1, replicas * context * tensor * stages)
        shards = shards if shards > 0 else max(1, processes // others)
        fits = shards * others == processes and min(replicas, context, tensor, stages, experts) > 0
        if fits and shards * context * tensor % experts == 0:
            return None
        text = ", ".join(map("{} {}".format, _DEGREES, degrees))
        return (
            f"has {processes} processes (nodes times gpus_per_node), which do not fit torchtitan's "
            f"parallelism ({text}): the product of all degrees except expert_parallel_degree must "
            f"be {processes}, and expert_parallel_degree must divide the product of the shard, "
            f"context and tensor degrees ({shards * context * tensor})"
        )

    def to_args(self) -> list[str]:
        """Return the arguments of `python -m training.titan`."""
        port = [] if self.metrics_port is None else [f"--metrics-port={self.metrics_port}"]
        arguments = [f"--module={self.module}", f"--config={self.config}", *port]
        sections = _definition(self._config["$ref"])["properties"]
        # Subcommands must follow all options.
        subcommands = {
            name for name in self.options if sections[name].get("$comment") == "subcommand"
        }
        return [
            *arguments,
            *_flags(
                {name: value for name, value in self.options.items() if name not in subcommands}
            ),
            *(f"{name.replace('_', '-')}:{self.options[name]}" for name in sorted(subcommands)),
        ]


def _definition(ref: str) -> dict[str, Any]:
    definition: dict[str, Any] = released()["$defs"][ref.rpartition("/")[2]]
    return definition


def _flags(options: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """Yield the options in the syntax of torchtitan's command line."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flags(value, f"{section}{name}.")
        elif isinstance(value, bool):
            yield f"--{section}{'' if value else 'no_'}{name}"
        elif isinstance(value, list):
            yield f"--{section}{name}={','.join(value)}"
        else:
            yield f"--{section}{name}={value}"


def _sentence(error: "ValidationError") -> str:
    here = ".".join(("options", *map(str, error.absolute_path)))
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        schema: Any = error.schema
        known = schema["properties"]
        name = str(next(name for name in instance if name not in known))
        return f"sets {here}.{name}, which {_unknown(name, known)}"
    return f"sets {here} to {instance!r}: {error.message}"


def _unknown(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    advice = f": did you mean {close[0]!r}?" if close else "."
    version = released()["torchtitan"]
    return f"torchtitan {version} does not have{advice} It has {', '.join(sorted(known))}"
