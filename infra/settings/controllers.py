"""How fast Volcano's controllers work, which make the pods of jobs."""

from typing import Any

from pydantic import Field

from infra.settings.types import PositiveInt, Settings


class ControllersSettings(Settings):
    """The pace of the controllers that make pods, groups and services of jobs.

    A job of eight pods costs them about thirty requests, so that at Volcano's own 50 a second they
    give the scheduler a dozen pods a second (`make bench-scale`).
    """

    requests_per_second: PositiveInt = Field(
        default=1000, description="most requests to the API server, which sheds load by itself"
    )
    burst: PositiveInt = Field(default=2000, description="most requests at once")
    workers: PositiveInt = Field(
        default=10, description="jobs, and as many groups, that are handled at once"
    )

    def chart_values(self) -> dict[str, Any]:
        """The keys of the chart's `custom`, since 1.11; older charts have none for it."""
        return {
            "controller_kube_api_qps": self.requests_per_second,
            "controller_kube_api_burst": self.burst,
            "controller_worker_threads": self.workers,
            "controller_worker_threads_for_podgroup": self.workers,
        }
