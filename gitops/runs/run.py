"""One run as people ask for it."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from gitops.runs.said import Progress
from gitops.runs.states import State


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Times are in UTC; `gpus` are those that its placed pods have, by resource name."""

    namespace: str
    name: str
    kind: str
    queue: str
    state: State
    pods: int
    """That have a node."""
    wanted: int
    """That it has or needs at once, whichever is more."""
    gpus: Counter[str]
    restarts: int
    created: datetime | None
    stage: str = ""
    """The step at which a run with steps is or has failed."""
    progress: Progress | None = None
    position: int | None = None
    """Among the runs that wait in its queue, from 1; None where it does not wait."""
    held: str = ""
    """What it waits for, in one line, where it does."""
    reasons: tuple[str, ...] = ()
    """Why it waits."""
    last_words: tuple[str, ...] = ()
    """Of a pod that failed."""
    kept: str = ""
    """The command that shows lines and events of its failures; empty where nothing keeps them."""
    gpu_hours: Decimal = Decimal(0)
    cost: Decimal | None = None

    def as_json(self) -> dict[str, Any]:
        """For machines; numbers that are not known are null."""
        told = self.progress or Progress()
        return {
            "namespace": self.namespace,
            "name": self.name,
            "kind": self.kind,
            "queue": self.queue,
            "state": str(self.state),
            "stage": self.stage or None,
            "pods": {"placed": self.pods, "wanted": self.wanted},
            "gpus": dict(sorted(self.gpus.items())),
            "restarts": self.restarts,
            "created": None if self.created is None else self.created.isoformat(),
            "progress": {
                "epoch": told.epoch,
                "epochs": told.epochs,
                "step": told.step,
                "loss": told.loss,
                "accuracy": told.accuracy,
                "secondsLeft": None if told.left_seconds is None else round(told.left_seconds),
            },
            "queuePosition": self.position,
            "held": self.held,
            "reasons": list(self.reasons),
            "lastWords": list(self.last_words),
            "kept": self.kept or None,
            "gpuHours": float(round(self.gpu_hours, 4)),
            "cost": None if self.cost is None else float(round(self.cost, 2)),
        }
