"""A platform with Prometheus, and queries for its alerts and pods."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.cluster.platform import Platform, await_
from tests.operators.prometheus import Prometheus


@dataclass(frozen=True)
class Watched:
    """The platform, its Prometheus, and names of the runs."""

    platform: Platform
    prometheus: Prometheus
    runs: dict[str, str]

    def firing(self, **wanted: dict[str, str]) -> set[str]:
        """Return the names of the alerts that are firing with the given label prefixes."""
        return _matching(self.prometheus.firing(), wanted)

    def await_firing(self, **wanted: dict[str, str]) -> None:
        """Wait until each of the alerts has fired, not necessarily at the same time."""
        missing = set(wanted)

        def all_have() -> bool:
            missing.difference_update(_matching(self.prometheus.fired(), wanted))
            return not missing

        try:
            await_(all_have, "all alerts")
        except AssertionError:
            raise AssertionError(f"{sorted(missing)} did not fire") from None

    def await_silence(self, **wanted: dict[str, str]) -> None:
        """Wait until none of the alerts is firing."""
        await_(lambda: not self.firing(**wanted), f"{wanted} no longer fire")

    def server(self) -> dict[str, Any]:
        """Return the pod that answers requests."""
        selector = "gpu-platform.dev/service=digits"
        found = self.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)["items"]
        return dict(found[0])

    def python(self, pod: str, program: str) -> None:
        """Run a program in a pod."""
        self.platform.shell(
            shlex.join(["kubectl", "exec", "-n", "ml-dev", pod, "--", "python3", "-c", program])
        )


def _matching(found: Iterator[dict[str, str]], wanted: dict[str, dict[str, str]]) -> set[str]:
    """Return the wanted alerts whose labels begin with the given values."""
    return {
        labels["alertname"]
        for labels in found
        if labels["alertname"] in wanted
        and all(
            labels.get(name, "").startswith(value)
            for name, value in wanted[labels["alertname"]].items()
        )
    }
