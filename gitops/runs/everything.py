"""All that runs and all that waits, runs of this project or not, written once."""

from datetime import UTC, datetime

from rich.console import Console

from gitops import prices
from gitops.runs.cluster import Cluster
from gitops.runs.finding import runs
from gitops.runs.screen import screen
from gitops.runs.waiting import waiting


def tell_runs(cluster: Cluster, console: Console | None = None) -> None:
    """Writes the runs as a table, and below it what else waits and why. Raises GitopsError."""
    table = prices.load()
    console = console or Console(soft_wrap=True)
    now = datetime.now(UTC)
    picture = cluster.picture()
    found = runs(cluster, table, now, picture=picture)
    if found:
        console.print()
        console.print(screen(found, table.currency, now))
    told = {(run.namespace, run.name) for run in found if run.held}
    for item in waiting(picture):
        if (item.namespace, item.job) not in told:
            console.print(f"\n{item}", highlight=False, markup=False)
