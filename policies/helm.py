"""The rule about Helm releases, whose objects the other rules cannot see."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, release_rule, show
from policies.settings import NoConfig
from policies.values import Node

_CHARTS = (("chart",), ("spec", "chart"), ("spec", "chart", "spec", "chart"))
_VERSIONS = (("version",), ("spec", "version"), ("spec", "chart", "spec", "version"))
_REPOSITORIES = (("repositoryOpts", "repo"), ("spec", "repo"))


def _first(resource: Resource, places: tuple[tuple[str, ...], ...]) -> Node:
    """Return the first path at which a name is set, or else the first path."""
    found = []
    for steps in places:
        node = resource.root
        for step in steps:
            node = node[step]
        found.append(node)
    return next((node for node in found if node.text), found[0])


def _command(resource: Resource) -> str:
    """Return the command that renders the chart, as far as the release defines it."""
    name = resource.root["name"].text or resource.name
    command = ["helm", "template", name, _first(resource, _CHARTS).text or "CHART"]
    for option, places in (("--repo", _REPOSITORIES), ("--version", _VERSIONS)):
        if text := _first(resource, places).text:
            command += [option, text]
    return f"{shlex.join(command)} --values FILE | python -m policies.check -"


@release_rule(
    name="helm-release-judged",
    description="The rendered charts of Helm releases are checked, too.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Check the rendered chart with policies.check, in CI or by hand.",
    config=NoConfig,
)
def helm_release_judged(resource: Resource, config: NoConfig) -> Iterator[Violation]:
    """A release contains only values: the objects of its chart first appear in the cluster."""
    chart = _first(resource, _CHARTS)
    yield Violation(
        chart,
        f"the rendered chart into the check: {_command(resource)}",
        found=f"{show(chart.text)}, of which only the values are visible; its objects were "
        "checked by no rule",
    )


RULES: list[Rule[Any]] = [helm_release_judged]
