"""Rules in CEL, the language of ValidatingAdmissionPolicies.

A rule that one object decides alone has, in addition to its Python, a CEL expression that returns
the violating places of the object. `policies.admission` turns it into a policy of the API server.
This module contains what the expressions share: targets, variables and the settings of a rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Manifest = dict[str, Any]

_CHANGED: Final = "dyn(object).spec != dyn(oldObject).spec"
_POD_SPEC: Final = (
    "request.resource.resource == 'pods' ? dyn({0}).spec"
    " : request.resource.resource == 'podtemplates' ? dyn({0}).template.spec"
    " : request.resource.resource == 'cronjobs' ? dyn({0}).spec.jobTemplate.spec.template.spec"
    " : dyn({0}).spec.template.spec"
)


@dataclass(frozen=True)
class Target:
    """API resources that a policy evaluates.

    `changed` decides which updates are evaluated. Controllers add labels and remove finalizers of
    objects that exist already, and a denied update would keep such an object forever.
    """

    resources: Mapping[str, tuple[str, ...]]
    changed: str = ""

    def rules(self) -> list[Manifest]:
        """Return the resourceRules of the policy."""
        operations = ["CREATE", "UPDATE"] if self.changed else ["CREATE"]
        return [
            {
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": operations,
                "resources": list(names),
            }
            for group, names in self.resources.items()
        ]

    def conditions(self) -> list[Manifest]:
        """Return the matchConditions of the policy."""
        if not self.changed:
            return []
        return [{"name": "changed", "expression": f"oldObject == null || ({self.changed})"}]


PODS: Final = Target(
    {
        "": (
            *("pods", "pods/ephemeralcontainers", "pods/resize"),
            *("podtemplates", "replicationcontrollers"),
        ),
        "apps": ("daemonsets", "deployments", "replicasets", "statefulsets"),
        "batch": ("cronjobs", "jobs"),
    },
    f"({_POD_SPEC.format('object')}) != ({_POD_SPEC.format('oldObject')})",
)
"""Pods, whatever made them, and the templates of Kubernetes' own kinds."""
SERVICES: Final = Target({"": ("services",)}, _CHANGED)
VOLUMES: Final = Target({"": ("persistentvolumes",)})
"""Only their creation: the source is immutable, and binding a volume updates it."""
CLAIMS: Final = Target({"resource.k8s.io": ("resourceclaims", "resourceclaimtemplates")})
"""Only their creation: the specification is immutable."""

_VARIABLES: Final = {
    "spec": _POD_SPEC.format("object"),
    "context": "variables.spec.?securityContext.orValue({})",
    "containers": (
        "variables.spec.containers + variables.spec.?initContainers.orValue([])"
        " + variables.spec.?ephemeralContainers.orValue([])"
    ),
    "volumes": "variables.spec.?volumes.orValue([])",
    "images": (
        "variables.containers.map(c, c.?image.orValue(''))"
        " + variables.volumes.filter(v, has(v.image)).map(v, v.image.?reference.orValue(''))"
    ),
    "inNamespace": (
        "object.metadata.?namespace.orValue('') == '' ? 'default' : object.metadata.namespace"
    ),
    "trusted": (
        "request.userInfo.username in settings.controllers"
        " || 'system:masters' in request.userInfo.?groups.orValue([])"
    ),
    "owners": (
        "!variables.trusted ? [] : object.metadata.?ownerReferences.orValue([])"
        ".filter(o, o.?controller.orValue(false))"
    ),
    "addresses": (
        "[variables.inNamespace + '/' + request.kind.kind + '/'"
        " + object.metadata.?name.orValue('')]"
        " + variables.owners.map(o, variables.inNamespace + '/' + o.kind"
        r" + (o.apiVersion.matches('^([^./]+/)?[^/]+$|\.k8s\.io/') ? ''"
        " : '.' + o.apiVersion.split('/')[0]) + '/' + o.name)"
        " + variables.owners.filter(o, o.kind in ['ReplicaSet', 'Job'] && o.name.contains('-'))"
        ".map(o, variables.inNamespace + (o.kind == 'Job' ? '/CronJob/' : '/Deployment/')"
        " + o.name.substring(0, o.name.lastIndexOf('-')))"
    ),
}
"""Variables that any expression may use; a policy contains those that it does use."""

_REFERENCE = re.compile(r"\bvariables\.(\w+)")
_SETTING = re.compile(r"\b(pattern\()?settings\.(\w+)(?(1)\))")


@dataclass(frozen=True)
class Cel:
    """A rule in CEL.

    `violations` is a list of strings, the names of the violating places. It may use `variables.x`
    for the shared variables and for those of `variables`, `settings.x` for a setting of the rule,
    by its name in the configuration file, and `pattern(settings.x)` for a list of patterns with `*`
    as one regular expression.
    """

    violations: str
    target: Target = PODS
    variables: Mapping[str, str] = field(default_factory=dict)

    def expressions(self, settings: Mapping[str, Any], exempt: str) -> dict[str, str]:
        """Return `exempt`, `violations` and the variables that they use, with settings inserted."""
        defined = {"exempt": exempt, "violations": self.violations}
        known = {**_VARIABLES, **self.variables, **defined}
        names = dict.fromkeys(name for last in defined for name in _needed(last, known))
        return {
            name: _SETTING.sub(lambda match: _setting(match, settings), known[name])
            for name in names
        }


def pod(**violations: str) -> Cel:
    """Return the rule that fields of a pod specification violate by one condition each."""
    each = (f"({condition} ? ['{name}'] : [])" for name, condition in violations.items())
    return Cel(" + ".join(each))


def containers(violation: str, **variables: str) -> Cel:
    """Return the rule that a container `c` of a pod violates by a condition."""
    found = f"variables.containers.filter(c, {violation}).map(c, 'container ' + c.name)"
    return Cel(found, variables=variables)


def volumes(violation: str, **variables: str) -> Cel:
    """Return the rule that a volume `v` of a pod violates by a condition."""
    found = f"variables.volumes.filter(v, {violation}).map(v, 'volume ' + v.name)"
    return Cel(found, variables=variables)


def images(violation: str, **variables: str) -> Cel:
    """Return the rule that an image `i` of a pod violates by a condition."""
    return Cel(f"variables.images.filter(i, {violation})", variables=variables)


def _needed(name: str, known: Mapping[str, str]) -> list[str]:
    """Return the variables that a variable uses, in the order of evaluation, and itself."""
    used = [each for other in _REFERENCE.findall(known[name]) for each in _needed(other, known)]
    return [*used, name]


def literal(value: Any) -> str:
    """Return a setting as a CEL literal, whose strings are written as in JSON."""
    return json.dumps(value)


def pattern(patterns: Sequence[str]) -> str:
    """Return the regular expression (RE2) of names in which `*` matches anything."""
    if not patterns:
        return r"[^\s\S]"
    each = ("".join(map(_wildcard, text)) for text in patterns)
    return f"^(?s:{'|'.join(each)})$"


def _wildcard(character: str) -> str:
    return {"*": ".*", "?": "."}.get(character) or re.escape(character)


def _setting(match: re.Match[str], settings: Mapping[str, Any]) -> str:
    value = settings[match[2]]
    return literal(pattern(value) if match[1] else value)
