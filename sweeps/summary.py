"""Summary of a sweep, which the controller writes to an annotation of the JobTemplate."""

import math
from collections.abc import Sequence
from typing import Any, Final

from optuna.distributions import distribution_to_json

from infra.sweep import Price, Sweep
from sweeps.decisions import Trial
from sweeps.study import Study

_MAX_TRIALS: Final = 300
"""Maximum number of trials in the summary, because annotations are limited to 256 KiB."""


def summarize(
    sweep: Sweep, study: Study, trials: Sequence[Trial], gpu_seconds: float, state: str
) -> dict[str, Any]:
    """Return the summary of a sweep, with its trials sorted from best to worst."""
    recorded, settings = study.trials(), sweep.settings
    rows: list[dict[str, Any]] = []
    for number, trial in enumerate(trials):
        known = recorded[trial.run]
        trained = max(trial.values, default=0)
        value = known.value if known.value is not None else known.intermediate_values.get(trained)
        rows.append(
            {
                "number": number,
                "run": trial.run,
                "phase": trial.phase,
                "trained": trained,
                "value": value if value is not None and math.isfinite(value) else None,
                "hyperparameters": known.params,
            }
        )
    sign = -1.0 if settings.objective.goal == "maximize" else 1.0
    # A trial that was trained longer precedes a trial with a better value.
    rows.sort(key=lambda row: (-row["trained"], row["value"] is None, sign * (row["value"] or 0.0)))
    return {
        "state": state,
        "objective": settings.objective.model_dump(),
        "unit": settings.unit,
        "length": settings.length,
        "chosen": len(trials),
        "maximum_trials": settings.trials,
        "gpu_hours": round(gpu_seconds / 3600, 2),
        "maximum_gpu_hours": round(sweep.gpu_hours, 2),
        "cost": None if sweep.price is None else _cost(sweep.price, gpu_seconds),
        "maximum_cost": settings.budget.money,
        "space": {name: distribution_to_json(each) for name, each in study.distributions.items()},
        "trials": rows[:_MAX_TRIALS],
    }


def _cost(price: Price, gpu_seconds: float) -> dict[str, Any]:
    return {"amount": round(gpu_seconds / 3600 * price.gpu_hour, 2), "currency": price.currency}
