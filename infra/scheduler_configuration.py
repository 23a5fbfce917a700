"""Volcano's configuration as text, made from typed settings (pure).

The names are those of Volcano's `pkg/scheduler/conf`, the same from 1.10 to 1.15.
"""

from typing import Any, Final

import yaml

from infra.settings.scheduler import OVERCOMMIT, SchedulerSettings, SlaSettings

_PACKED: Final = 10
"""Weight of binpack beside nodeorder's scores, whose weights are 1 to 3."""


def scheduler_configuration(settings: SchedulerSettings, *, hierarchical: bool) -> str:
    """The text of `volcano-scheduler.conf`; `hierarchical` where queues have parents."""
    # All that judges victims is in one tier: of several, the first that names any decides alone,
    # and a queue would lose pods within its share (`Session.Reclaimable`).
    plugins: dict[str, dict[str, Any] | None] = {
        "priority": {} if settings.priority else None,
        "gang": {
            "enablePreemptable": settings.preempt == "surplus",
            "enableReclaimable": settings.reclaim == "surplus",
        },
        "conformance": {},
        "overcommit": _overcommit(settings),
        # Its own idea of victims does not look at priorities.
        "drf": {"enablePreemptable": False} if settings.drf else None,
        "predicates": {},
        settings.share: {"enableHierarchy": True} if hierarchical else {},
        "nodeorder": _node_order(settings),
        "binpack": _binpack(settings),
    }
    used = [{"name": name, **options} for name, options in plugins.items() if options is not None]
    tiers = [{"plugins": used}]
    if settings.sla is not None:
        tiers.insert(0, {"plugins": [_sla(settings.sla)]})
    document = {"actions": ", ".join(_actions(settings)), "tiers": tiers}
    return yaml.safe_dump(document, sort_keys=False)


def _actions(settings: SchedulerSettings) -> list[str]:
    switched = {
        "enqueue": settings.holds_back,
        "allocate": True,
        "preempt": settings.preempt != "none",
        "reclaim": settings.reclaim != "none",
        "backfill": settings.backfill,
    }
    return [action for action, on in switched.items() if on]


def _overcommit(settings: SchedulerSettings) -> dict[str, Any] | None:
    if not settings.holds_back:
        return None
    return {"arguments": {"overcommit-factor": settings.overcommit or OVERCOMMIT}}


def _sla(settings: SlaSettings) -> dict[str, Any]:
    # In a tier before all others, so that its vote counts; priorities still order the jobs.
    return {
        "name": "sla",
        "enableJobOrder": False,
        "enableJobPipelined": settings.reserve,
        "arguments": {"sla-waiting-time": f"{settings.longest_wait_seconds}s"},
    }


def _node_order(settings: SchedulerSettings) -> dict[str, Any]:
    # Its default prefers the emptiest node, the opposite of binpack.
    least = 0 if settings.placement == "binpack" else _PACKED
    return {"arguments": {"leastrequested.weight": least}}


def _binpack(settings: SchedulerSettings) -> dict[str, Any] | None:
    if settings.placement != "binpack":
        return None
    # Devices count only where they are named; CPU and memory have keys of their own.
    weights = dict(settings.pack_by)
    basic = {f"binpack.{name}": weights.pop(name, 0) for name in ("cpu", "memory")}
    devices = {"binpack.resources": ", ".join(weights)} if weights else {}
    each = {f"binpack.resources.{name}": weight for name, weight in weights.items()}
    return {"arguments": {"binpack.weight": _PACKED, **basic, **devices, **each}}
