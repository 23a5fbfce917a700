"""Steps of a training job, and checks of their order and of the outputs that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from infra.settings.inference.scaling import MetricName
from infra.settings.schema import DERIVED_HYPERPARAMETERS
from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    EnvironmentName,
    MemoryQuantity,
    PositiveInt,
    Settings,
)
from kube.kinds.volcano import TRAINING_STEP
from training.config import TrainingConfig
from workload.promotion import parse_condition
from workload.results import EXPORT, MEDIA_TYPE, OUTPUT_NAME, PARAMETERS, PLACEHOLDER

if TYPE_CHECKING:
    from infra.settings.training.job import TrainingJobSettings

ITEM: Final = "ITEM"
"""Environment variable with the value of `for_each` that a step's pod processes."""

StepName = Annotated[DnsLabel, Field(max_length=20)]


def _limit(text: str) -> str:
    if parse_condition(text).limit is None:
        raise ValueError('must compare with a number, such as ">= 0.97"')
    return text


Limit = Annotated[str, AfterValidator(_limit)]
"""Comparison of a metric with a number."""


def _output_type(text: str) -> str:
    if text not in PARAMETERS and not MEDIA_TYPE.fullmatch(text):
        raise ValueError(
            f"must be {', '.join(PARAMETERS)}, or the media type of an artifact, such as text/csv"
        )
    return text


def _reference(text: str) -> str:
    step, _, output = text.partition(".")
    if not step or not output or (step != TRAINING_STEP and "." in output):
        raise ValueError("must be <step>.<output>, such as prepare.rows")
    return text


def _output_name(text: str) -> str:
    if len(text) > 40 or not re.fullmatch(OUTPUT_NAME, text):
        raise ValueError(
            "must begin with a lower-case letter, followed by at most 39 lower-case letters, "
            "digits and _"
        )
    return text


OutputName = Annotated[str, AfterValidator(_output_name)]
OutputType = Annotated[str, AfterValidator(_output_type)]
Reference = Annotated[str, AfterValidator(_reference)]


class StepSettings(Settings):
    """A step: one pod that runs a command with the job's image and claims."""

    command: list[str] = Field(min_length=1, description="Command with its arguments.")
    after: list[StepName] = Field(
        default=[],
        description="Steps that must succeed before this one starts; "
        f"`{TRAINING_STEP}` is the training step.",
    )
    when: dict[MetricName, Limit] = Field(
        default={},
        description='Conditions on metrics of the run\'s export, such as accuracy: ">= 0.97". If '
        "a condition does not hold, this step and all steps that wait for it are skipped.",
    )
    inputs: dict[OutputName, Reference] = Field(
        default={},
        description="Outputs of other steps, each as `<step>.<output>`; the step waits for them. "
        "`$(inputs.<name>)` in the command and in `env` is replaced with a parameter's value or an "
        f"artifact's path. `{TRAINING_STEP}.{EXPORT}` is the directory of the run's export, and "
        f"`{TRAINING_STEP}.<metric>` one of its metrics. The output of a step with for_each is a "
        "JSON list.",
    )
    outputs: dict[OutputName, OutputType] = Field(
        default={},
        description=f"Outputs by name, with their types: {', '.join(PARAMETERS)}, or the media "
        "type of an artifact, such as text/csv. The command writes each to the file "
        "`$(outputs.<name>)`. If the step has already run with the same image, command, `env` and "
        "inputs, the command does not run, and the outputs of that run are reused.",
    )
    cache: bool = Field(
        default=True,
        description="Reuse the outputs of an earlier run if possible. If false, the step runs once "
        "in each run.",
    )
    for_each: list[str] = Field(
        default=[],
        max_length=100,
        description="Run the step once for each of these values, in parallel. $(ITEM) in the "
        "command is replaced with the value. Later steps wait until all of these pods have "
        "succeeded.",
    )
    retries: PositiveInt | None = Field(
        default=None,
        le=100,
        description="Maximum number of restarts before the step fails. Defaults to the job's "
        "`retries`.",
    )
    gpus: int = Field(default=0, ge=0, le=64, description="Number of GPUs per pod.")
    cpu: CpuQuantity = Field(default="1", description="CPU request of the pod.")
    memory: MemoryQuantity = Field(
        default="2Gi", description="Memory request and limit of the pod."
    )
    env: dict[EnvironmentName, str] = Field(
        default={}, description="Additional environment variables."
    )
    writes_datasets: bool = Field(
        default=False, description="Mount the datasets claim for writing."
    )

    @model_validator(mode="after")
    def _cache_has_outputs(self) -> Self:
        if not self.cache and not self.outputs:
            raise ValueError(
                "sets cache: false but has no outputs. A step without outputs always runs: remove "
                "cache"
            )
        return self

    @property
    def waits_for(self) -> list[str]:
        """Steps that this one waits for: `after`, and the producers of its inputs."""
        return list(dict.fromkeys([*self.after, *producers(self.inputs)]))


_JSON_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "number": frozenset({"integer", "number"}),
    "text": frozenset({"string"}),
    "boolean": frozenset({"boolean"}),
}
"""Maps parameter types to the JSON Schema types of hyperparameters that accept them."""


def step_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield an error message for each problem with the steps of a job."""
    problem = _order_problem(job)
    if problem is not None:
        yield problem
    for name, step in job.steps.items():
        if step.for_each and ITEM in step.env:
            yield f"sets steps.{name}.env.{ITEM}, which for_each also sets: remove it"
        for index, _ in enumerate(step.for_each):
            if f"{name}-{index}" in job.steps:
                yield (
                    f"has two steps named {name}-{index} (steps.{name}.for_each creates one, and "
                    f"steps.{name}-{index} is the other): rename one of the keys"
                )
    if problem is None:
        for name, step in job.steps.items():
            if step.when and TRAINING_STEP not in preceding_steps(job, name):
                yield (
                    f"sets steps.{name}.when, which reads metrics of the run, but the step does "
                    f"not run after training: set after: [{TRAINING_STEP}]"
                )
        yield from _value_problems(job)
    if job.steps and job.state == "stopped":
        # The JobFlow would re-create the job of a stopped step.
        yield "has steps, but state is 'stopped': delete the JobFlow of the run instead"
    if any(step.writes_datasets for step in job.steps.values()) and job.datasets is None:
        yield "has a step with writes_datasets, but no claim to write to: set datasets"
    if job.schedule is not None:
        yield from _schedule_problems(job)


def producers(inputs: Mapping[str, str]) -> list[str]:
    """Return the steps that produce these inputs.

    Each input is a reference `<step>.<output>`, or a list of references.
    """
    references = (each for text in inputs.values() for each in text.strip("[]").split(","))
    return list(dict.fromkeys(reference.partition(".")[0] for reference in references))


def preceding_steps(job: TrainingJobSettings, name: str) -> list[str]:
    """Return the steps that precede a step, directly or indirectly."""
    preceding: list[str] = []
    pending = list(job.steps[name].waits_for)
    while pending:
        earlier = pending.pop()
        if earlier not in preceding:
            preceding.append(earlier)
            pending += job.waits_for if earlier == TRAINING_STEP else job.steps[earlier].waits_for
    return preceding


def _order_problem(job: TrainingJobSettings) -> str | None:
    """Return an error message for a reserved step name, an unknown step or a cycle of steps."""
    if TRAINING_STEP in job.steps:
        return (
            f"has a step {TRAINING_STEP!r}, but this name is reserved for the training step: "
            "choose another name"
        )
    after = {name: step.after for name, step in job.steps.items()} | {TRAINING_STEP: job.after}
    inputs = {name: step.inputs for name, step in job.steps.items()} | {TRAINING_STEP: job.inputs}
    for name, earlier in after.items():
        prefix = "" if name == TRAINING_STEP else f"steps.{name}."
        named = [(f"{prefix}after", other) for other in earlier]
        for key, reference in inputs[name].items():
            named += [(f"{prefix}inputs.{key}", other) for other in producers({key: reference})]
        for here, other in named:
            if other not in after:
                known = ", ".join(sorted(set(after) - {name})) or "none"
                return f"refers to {other!r} in {here}, but has no such step (known: {known})"
    try:
        graph = {name: step.waits_for for name, step in job.steps.items()}
        TopologicalSorter({**graph, TRAINING_STEP: job.waits_for}).prepare()
    except CycleError as error:
        cycle = " → ".join(error.args[1])
        return f"has steps that wait for each other: after and inputs form the cycle {cycle}"
    return None


def _value_problems(job: TrainingJobSettings) -> Iterator[str]:
    """Yield an error message for each invalid input, output and placeholder."""
    for name, step in job.steps.items():
        prefix = f"steps.{name}."
        for key, reference in step.inputs.items():
            if problem := _unknown_output(job, reference):
                yield f"sets {prefix}inputs.{key} to {reference!r}, but {problem}"
        texts = [*step.command, *step.env.values()]
        yield from _placeholder_problems(prefix, texts, step.inputs, step.outputs)
    texts = [*(job.command or ()), *job.env.values()]
    for key, reference in job.inputs.items():
        problem = _unknown_output(job, reference) or (
            None if job.command is not None else _hyperparameter_problem(job, key, reference)
        )
        if problem:
            yield f"sets inputs.{key} to {reference!r}, but {problem}"
    yield from _placeholder_problems("", texts, job.inputs, {})


def _unknown_output(job: TrainingJobSettings, reference: str) -> str | None:
    producer, _, output = reference.partition(".")
    if producer == TRAINING_STEP or output in job.steps[producer].outputs:
        return None
    known = ", ".join(sorted(job.steps[producer].outputs)) or "none"
    return f"step {producer} has no output {output!r} (outputs: {known})"


def _placeholder_problems(
    prefix: str, texts: Iterable[str], inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> Iterator[str]:
    declared: dict[str, Mapping[str, str]] = {"inputs": inputs, "outputs": outputs}
    used = {match.groups() for text in texts for match in PLACEHOLDER.finditer(text)}
    for group, name in sorted(used):
        if name not in declared[group]:
            yield f"uses $({group}.{name}), but has no {prefix}{group}.{name}: declare it"
    for name in outputs:
        if ("outputs", name) not in used:
            yield (
                f"sets {prefix}outputs.{name}, but $(outputs.{name}) is neither in the step's "
                "command nor in its env: the command must write the output to the file "
                f"$(outputs.{name})"
            )


def _hyperparameter_problem(job: TrainingJobSettings, key: str, reference: str) -> str | None:
    """Return an error message if an output cannot set the hyperparameter `key`."""
    if job.hyperparameters is None:
        return "the job has neither hyperparameters nor a command to read it"
    if key not in TrainingConfig.model_fields.keys() - DERIVED_HYPERPARAMETERS:
        return f"there is no hyperparameter {key!r} to set"
    if key in job.hyperparameters.model_fields_set:
        return f"hyperparameters.{key} is also set: leave one of them out"
    producer, _, output = reference.partition(".")
    step = job.steps[producer]
    if step.for_each:
        return f"step {producer} has for_each, so the output is a list: set a command to read it"
    type_ = step.outputs[output]
    accepted = _types_of(key)
    compatible = _JSON_TYPES[type_ if type_ in PARAMETERS else "text"]
    if accepted.isdisjoint(compatible):
        types = " or ".join(sorted(accepted - {"null"}))
        return f"its type is {type_}, and the hyperparameter is of type {types}"
    return None


def _types_of(field: str) -> set[str]:
    """Return the JSON Schema types that a hyperparameter accepts."""
    schema = TrainingConfig.model_json_schema()["properties"][field]
    return {str(each.get("type")) for each in schema.get("anyOf", [schema])}


def _schedule_problems(job: TrainingJobSettings) -> Iterator[str]:
    if job.run is not None:
        yield "sets run, but has a schedule, whose runs have their own names: remove run"
    if job.state != "running":
        yield f"has a schedule, but state is {job.state!r}: set schedule.suspend to true instead"
    if job.recreate:
        yield "sets recreate, but has a schedule, which creates each run once: remove recreate"
