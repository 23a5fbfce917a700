"""Rule about objects, such as Helm releases, that deploy manifests which rules cannot check."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from policies.resources import Resource
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, release_rule, show
from policies.settings import SystemNames
from policies.values import Node

_CHARTS = (("chart",), ("spec", "chart"), ("spec", "chart", "spec", "chart"))
_VERSIONS = (("version",), ("spec", "version"), ("spec", "chart", "spec", "version"))
_NAMESPACES = (("namespace",), ("spec", "targetNamespace"), ("metadata", "namespace"))
_REPOSITORIES = (("repositoryOpts", "repo"), ("spec", "repo"))

_CHECK = "python -m policies.check -"
"""Command that checks manifests from standard input."""


def _first_set(resource: Resource, locations: tuple[tuple[str, ...], ...]) -> Node:
    """Return the value at the first path that is set, or at the first path if none is set."""
    nodes = []
    for steps in locations:
        node = resource.root
        for step in steps:
            node = node[step]
        nodes.append(node)
    return next((node for node in nodes if node.text), nodes[0])


def _command(resource: Resource) -> str:
    """Return the command that renders a release's chart and checks the manifests."""
    name = resource.root["name"].text or resource.name
    command = ["helm", "template", name, _first_set(resource, _CHARTS).text or "CHART"]
    options = {"--repo": _REPOSITORIES, "--version": _VERSIONS, "--namespace": _NAMESPACES}
    for option, locations in options.items():
        if text := _first_set(resource, locations).text:
            command += [option, text]
    return f"{shlex.join(command)} --values FILE | {_CHECK}"


class HelmReleaseConfig(RuleConfig):
    """Configuration of `helm-release-judged`."""

    checked_elsewhere: SystemNames = Field(
        default=[],
        description="Objects whose rendered manifests are checked elsewhere, such as in CI, each "
        "as `namespace/Kind/name` or `namespace/Kind.group/name`; `*` matches anything.",
    )


@release_rule(
    name="helm-release-judged",
    description="Manifests that Helm, Argo CD and Flux deploy from external sources are also "
    "checked.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Check the rendered manifests, then list the object that deploys them in "
    "checkedElsewhere.",
    config=HelmReleaseConfig,
)
def helm_release_judged(resource: Resource, config: HelmReleaseConfig) -> Iterator[Violation]:
    """A release contains only values; the objects of its chart are visible only in the cluster."""
    if resource.is_named(config.checked_elsewhere):
        return
    chart = _first_set(resource, _CHARTS)
    if not chart.text:
        yield Violation(
            resource.root["spec"],
            "this object (namespace/Kind/name) in checkedElsewhere after its rendered manifests "
            f"have passed this check: {_CHECK}",
            found=f"kind {resource.kind}, whose effects no rule has checked: "
            f"{resource.hidden_effects}",
        )
        return
    yield Violation(
        chart,
        "this object (namespace/Kind/name) in checkedElsewhere after its rendered manifests "
        f"have passed this check: {_command(resource)}",
        found=f"{show(chart.text)}, a chart whose objects no rule has checked",
    )


RULES: list[Rule[Any]] = [helm_release_judged]
