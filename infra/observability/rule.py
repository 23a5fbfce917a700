"""Rules as Prometheus reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["critical", "warning", "info"]

ON_POD: Final = "on (namespace, pod)"
"""How series of kube-state-metrics are joined."""

NOT_ENDED: Final = (
    f"{ON_POD} group_left () "
    'max by (namespace, pod) (kube_pod_status_phase{phase=~"Pending|Running"} == 1)'
)
"""By which a series of pods is multiplied to leave out those that have ended."""


@dataclass(frozen=True)
class Recording:
    """A series that is computed from others; named `level:metric:operations`."""

    record: str
    expr: str

    def manifest(self) -> dict[str, Any]:
        """As a rule file has it."""
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something that somebody should look at. `summary` and `does` may have `{{ $labels.x }}`."""

    name: str
    expr: str
    minutes: float
    severity: Severity
    summary: str
    does: str
    """What to do first; the runbook has the rest."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, runbooks: str) -> dict[str, Any]:
        """As a rule file has it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": f"{round(self.minutes * 60)}s",
            "labels": {"severity": self.severity, "part_of": "gpu-platform", **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.does,
                "runbook_url": f"{runbooks}#{self.name.lower()}",
            },
        }


def duration(minutes: float) -> str:
    """As PromQL writes it, in whole seconds and at least one."""
    return f"{max(1, round(minutes * 60))}s"


def group(name: str, rules: Sequence[dict[str, Any]], interval_seconds: int) -> dict[str, Any]:
    """Rules that are computed one after the other."""
    return {"name": name, "interval": f"{interval_seconds}s", "rules": list(rules)}
