"""Progress events: the JSON lines that a training program writes, as typed data.

Custom programs may write the same lines. Optional fields may be missing, and readers ignore fields
that they do not know.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

PROGRESS_FILE: Final = "progress.jsonl"
"""File in the directory of a run, with the progress lines of all epochs and evaluations."""


class Event(BaseModel):
    """One progress line. Undeclared fields are written unchanged."""

    model_config = ConfigDict(extra="allow", frozen=True)

    event: str

    def line(self) -> dict[str, object]:
        """Return the fields of the JSON line, except fields that were not set."""
        declared = self.model_dump(include=set(type(self).model_fields), exclude_unset=True)
        return {"event": self.event, **(self.model_extra or {}), **declared}


class Started(Event):
    """First line of an attempt, which starts a new run or resumes a run from a checkpoint.

    Hyperparameters are additional fields.
    """

    event: Literal["start", "resume"]
    epochs: int | float | None = None
    """Length of the run in epochs; not an integer if the run ends within an epoch."""
    done_epochs: float = 0
    """Epochs that were completed before the checkpoint."""
    step: int = 0
    """Step of the checkpoint."""
    batch_size: int = 1
    """Batch size per process."""
    processes: int = 1
    run_dir: str = ""
    device: str = ""
    samples: int | None = None
    """Samples per epoch."""
    held_out: int | None = None


class Step(Event):
    """Progress within an epoch."""

    event: Literal["step"] = "step"
    step: int
    loss: float
    done_epochs: float | None = None
    """Completed epochs, including the fraction of the current epoch."""
    epochs: int | float | None = None
    samples: int | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    """Global gradient norm before clipping."""
    samples_per_second: float | None = None
    """Samples per second of all processes since the previous line."""
    tokens_per_second: float | None = None
    """Tokens per second, for text."""
    mfu: float | None = None
    """Model FLOPs utilization; None if the GPU's peak FLOPS is unknown."""
    memory_bytes: int | None = None
    """Peak memory (bytes) allocated on the GPU of rank 0."""


class Epoch(Event):
    """End of an epoch. The last epoch of a run may be incomplete."""

    event: Literal["epoch"] = "epoch"
    epoch: int | float
    epochs: int | float | None = None
    step: int | None = None
    samples: int | None = None
    loss: float
    """Mean loss over the epoch's training samples."""
    accuracy: float | None = None
    held_out_loss: float | None = None
    metrics: dict[str, float] | None = None
    """Custom metrics over the held-out samples."""
    seconds: float | None = None


class Evaluated(Event):
    """Evaluation on held-out samples within an epoch."""

    event: Literal["evaluation"] = "evaluation"
    step: int
    done_epochs: float | None = None
    epochs: int | float | None = None
    samples: int | None = None
    """Held-out samples that were evaluated."""
    accuracy: float | None = None
    held_out_loss: float | None = None
    metrics: dict[str, float] | None = None
    seconds: float | None = None


class Checkpointed(Event):
    """A complete checkpoint."""

    event: Literal["checkpoint"] = "checkpoint"
    step: int
    seconds: float = 0
    """Time (s) from capturing the state to completing the checkpoint.

    Training may have continued during this time.
    """


class Finished(Event):
    """Last line of a run that succeeded, with its result."""

    event: Literal["finished"] = "finished"
    accuracy: float | None = None
    loss: float | None = None
    """Mean loss over the held-out samples."""
    seconds: float | None = None
    """Training time, summed over all attempts."""
    export: str = ""
    sha256: str = ""
    already: bool = False
    """True if the run had finished before this attempt."""


class Interrupted(Event):
    """Last line of an attempt that saved a checkpoint after SIGTERM."""

    event: Literal["interrupted"] = "interrupted"
    epoch: int | None = None
    step: int | None = None


class Failed(Event):
    """Last line of an attempt that failed."""

    event: Literal["error"] = "error"
    message: str
    rank: str | None = None
    exit_code: int | None = None


class Message(Event):
    """An informational message or a warning; it does not affect progress."""

    event: Literal["data", "warning"]
    message: str


class Preflight(Event):
    """Measurements of a gang before its first step. Additional fields contain the medians."""

    event: Literal["preflight"] = "preflight"
    seconds: float
    all_reduce: float
    """Bus bandwidth of an all-reduce in MB/s."""


class SlowNode(Event):
    """A process whose measurement is much worse than the median of its gang."""

    event: Literal["slow_node"] = "slow_node"
    node: str
    rank: int
    measurement: str
    value: float
    median: float
    unit: str


AnyEvent = Annotated[
    Started
    | Step
    | Epoch
    | Evaluated
    | Checkpointed
    | Finished
    | Interrupted
    | Failed
    | Message
    | Preflight
    | SlowNode,
    Field(discriminator="event"),
]
_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def parse(line: str) -> AnyEvent | None:
    """Return the event of a log line, or None if the line is not an event."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None
