"""Text output of sweeps: state, limits, and trials from best to worst."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gitops.errors import GitopsError

_MAX_TRIALS: Final = 10
_KEYS: Final = {
    *("state", "objective", "unit", "length", "chosen", "maximum_trials", "gpu_hours"),
    *("maximum_gpu_hours", "trials"),
}


def check_summary(key: str, summary: Mapping[str, Any], *more: str) -> None:
    """Raise GitopsError if a sweep's summary lacks a key that this version requires.

    A missing key means that an earlier version of the controller wrote the summary. `more` lists
    keys that only the caller requires.
    """
    if not summary.keys() >= {*_KEYS, *more}:
        raise GitopsError(
            f"an earlier version of the controller wrote the summary of sweep {key}: update the "
            "controller's image"
        )


def sweep_lines(sweeps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about sweeps, based on the summaries that their controller wrote.

    Raises:
        GitopsError: If an earlier version of the controller wrote a summary.
    """
    for key, summary in sorted(sweeps.items()):
        if not summary:
            yield f"{key}: the controller has not started yet"
            continue
        check_summary(key, summary)
        objective = summary["objective"]
        yield (
            f"{key}: {summary['state']}, {summary['chosen']} of {summary['maximum_trials']} "
            f"trials, {summary['gpu_hours']:g} of {summary['maximum_gpu_hours']:g} GPU-hours, "
            f"{_cost(summary)}{objective['goal']} {objective['metric']}"
        )
        if (winner := summary.get("winner")) is not None:
            yield f"  {winner} won; services with `sweep: {key}` serve it"
        if problem := rejection(summary):
            yield f"  {problem}"
        if problem := missing_value(summary):
            yield f"  {problem}"
        yield from _table(summary)


def rejection(summary: Mapping[str, Any]) -> str:
    """Return the API server's error if it rejects the sweep's trials, otherwise an empty string."""
    problem = summary.get("problem")
    return f"rejected by the API server: {problem}" if problem else ""


def missing_value(summary: Mapping[str, Any]) -> str:
    """Return a message if the export of a succeeded trial lacks the metric, otherwise ""."""
    trials = (each for each in summary["trials"] if each["phase"] == "succeeded")
    if (trial := next((each for each in trials if each["value"] is None), None)) is None:
        return ""
    return (
        f"{trial['run']} succeeded, but its export has no finite value of "
        f"{summary['objective']['metric']}, so it cannot win: check `objective.metric`"
    )


def _cost(summary: Mapping[str, Any]) -> str:
    if (cost := summary.get("cost")) is None:
        return ""
    return f"{cost['amount']:.2f} of {summary['maximum_cost']:.2f} {cost['currency']}, "


def _table(summary: Mapping[str, Any]) -> Iterator[str]:
    metric, length = summary["objective"]["metric"], summary["length"]
    rows = [["run", "phase", summary["unit"], metric, "hyperparameters"]]
    rows += [
        [
            trial["run"],
            trial["phase"],
            f"{trial['trained']}" if length is None else f"{trial['trained']}/{length}",
            "" if trial["value"] is None else f"{trial['value']:.6g}",
            ", ".join(f"{name}: {value}" for name, value in trial["hyperparameters"].items()),
        ]
        for trial in summary["trials"][:_MAX_TRIALS]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
    if (more := summary["chosen"] - _MAX_TRIALS) > 0:
        yield f"  and {more} more"
