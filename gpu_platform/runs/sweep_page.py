"""Self-contained HTML page about sweeps, with plots by Optuna.

Requires the packages in requirements/sweep-page.txt.
"""

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gitops.errors import GitopsError
from gpu_platform.runs.sweeps import check_summary, missing_value

_MIN_TRIALS: Final = 2
_FIGURE_SIZE: Final = (9, 4)


def page(sweeps: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page about sweeps, based on the summaries that their controller wrote.

    Raises:
        GitopsError: If packages are missing, or an earlier version of the controller wrote a
            summary.
    """
    shown = {
        key: {
            **summary,
            "plots": dict(_plots(key, summary)),
            "missing_value": missing_value(summary),
        }
        for key, summary in sorted(sweeps.items())
        if summary
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("sweep_page.html.j2").render(sweeps=shown)


def _plots(key: str, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title of each plot, and its SVG image as a data URI.

    Embedded as images, SVGs can neither run scripts nor load other resources.
    """
    try:
        import matplotlib as mpl
        import optuna

        mpl.use("Agg")
        from optuna.visualization import matplotlib as plots
    except ImportError as error:
        raise GitopsError(
            f"the page requires the {error.name} package: install it with "
            "`pip install --require-hashes -r requirements/sweep-page.txt`"
        ) from None
    check_summary(key, summary, "space")
    study = optuna.create_study(direction=summary["objective"]["goal"])
    space = {
        name: optuna.distributions.json_to_distribution(text)
        for name, text in summary["space"].items()
    }
    trials = [trial for trial in summary["trials"] if trial["value"] is not None]
    for trial in sorted(trials, key=lambda trial: trial["number"]):
        study.add_trial(
            optuna.trial.create_trial(
                value=trial["value"], params=trial["hyperparameters"], distributions=space
            )
        )
    if len(trials) < _MIN_TRIALS:
        return
    metric = summary["objective"]["metric"]
    drawings: dict[str, Callable[[], Any]] = {
        "History": lambda: plots.plot_optimization_history(study, target_name=metric),
        "Hyperparameters": lambda: plots.plot_parallel_coordinate(study, target_name=metric),
    }
    if len({trial["value"] for trial in trials}) > 1:
        drawings["Importance"] = lambda: plots.plot_param_importances(study, target_name=metric)
    # Do not parse text as formulas, and make the output reproducible.
    style: Any = {
        "text.parse_math": False,
        "svg.hashsalt": "sweeps",
        "figure.figsize": _FIGURE_SIZE,
    }
    for title, draw in drawings.items():
        with warnings.catch_warnings(), mpl.rc_context(style):
            warnings.simplefilter("ignore")
            yield title, _svg_uri(draw())


def _svg_uri(axes: Any) -> str:
    from matplotlib import pyplot
    from matplotlib.ticker import StrMethodFormatter

    figure = axes.figure
    axes.set_title("")
    for axis in (axis for each in figure.axes for axis in (each.xaxis, each.yaxis)):
        if axis.get_scale() == "log":
            # The tick labels of a logarithmic axis are formulas by default.
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    file = io.BytesIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
