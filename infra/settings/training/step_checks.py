"""Checks of a job's steps: their order, and the outputs that they read from each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Final

from infra.settings.schema import DERIVED_HYPERPARAMETERS
from kube.kinds.volcano import TRAINING_STEP
from training.config import TrainingConfig
from workload.results import PARAMETERS, PLACEHOLDER

if TYPE_CHECKING:
    from infra.settings.training.job import TrainingJobSettings

ITEM: Final = "ITEM"
"""Environment variable with the value of `for_each` that a step's pod processes."""


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
                    f"sets steps.{name}.when, which reads metrics of the training, but the step "
                    f"does not run after the training: set after: [{TRAINING_STEP}]"
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
            f"has a step {TRAINING_STEP!r}, but this name is reserved for the training: "
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
