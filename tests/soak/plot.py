"""Plot of a soak: memory over time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.soak.goals import WARM_UP, WORKLOADS, trends

LARGEST: Final = 9
"""Number of the cluster's programs that are drawn individually."""


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the workloads above and the cluster's largest programs below, with trends."""
    # Imported here: every process that collects the tests imports this module.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "soak"  # makes the file reproducible
    samples = result["memory"]
    found = trends(samples)
    own = sorted(set(found) - set(WORKLOADS), key=lambda name: -found[name].median)[:LARGEST]
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    shown: list[list[str]] = [[name for name in WORKLOADS if name in found], own]
    for one, names in zip(axes, shown, strict=True):
        for name in names:
            points = [(s["minute"], s["mib"][name]) for s in samples if name in s["mib"]]
            label = f"{name} ({found[name].slope_per_hour:+.1f} MiB/h)"
            one.plot(*zip(*points, strict=True), lw=1.2, label=label)
        one.axvspan(0, samples[-1]["minute"] * WARM_UP, color="black", alpha=0.06, lw=0)
        one.set_ylabel("anonymous memory (MiB)")
        one.set_ylim(bottom=0)
        one.grid(True, lw=0.3)
        one.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(
        f"{result['turns']} turns of submitting, killing and replacing, "
        f"{result['requests']['answered']} requests answered",
        fontsize="medium",
    )
    axes[1].set_xlabel("minutes (grey: warm-up, which is not counted)")
    figure.savefig(path, metadata={"Date": None})
