"""What runs before and after the training of a job, in order."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Final

from pydantic import Field

from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    EnvironmentName,
    MemoryQuantity,
    Settings,
)

TRAINING_STEP: Final = "train"
"""Name of the training itself among the steps."""

StepName = Annotated[DnsLabel, Field(max_length=20)]


class StepSettings(Settings):
    """One pod with a command, in the job's image and with the job's claims."""

    command: list[str] = Field(min_length=1, description="command with its arguments")
    after: list[StepName] = Field(
        default=[],
        description=f"steps that must have ended well before; `{TRAINING_STEP}` is the training",
    )
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of the pod")
    cpu: CpuQuantity = Field(default="1", description="CPU request of the pod")
    memory: MemoryQuantity = Field(default="2Gi", description="memory request and limit of the pod")
    env: dict[EnvironmentName, str] = Field(default={}, description="further environment variables")
    writes_datasets: bool = Field(
        default=False, description="mount the claim of the data sets so that it can be written"
    )


def order_problem(steps: Mapping[str, StepSettings], before_training: list[str]) -> str | None:
    """What is wrong with the order of steps, or None: an unknown name, or a circle."""
    if TRAINING_STEP in steps:
        return f"has a step {TRAINING_STEP!r}, which is the training itself: choose another name"
    graph = {name: step.after for name, step in steps.items()} | {TRAINING_STEP: before_training}
    for name, earlier in graph.items():
        for other in earlier:
            if other not in graph:
                here = "after" if name == TRAINING_STEP else f"steps.{name}.after"
                known = ", ".join(sorted(set(graph) - {name}))
                return f"has {other!r} in {here}, which is no step: write one of {known or 'none'}"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " → ".join(error.args[1])
        return f"has steps that wait for each other: after runs in a circle {circle}"
    return None
