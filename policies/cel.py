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

from kube.accelerators import DEVICE_CLASS_PREFIX

Manifest = dict[str, Any]

_CHANGED: Final = "dyn(object).spec != dyn(oldObject).spec"
_TEMPLATE: Final = (
    "(request.resource.resource == 'pods' ? dyn({0})"
    " : request.resource.resource == 'podtemplates' ? dyn({0}).template"
    " : request.resource.resource == 'cronjobs' ? dyn({0}).spec.jobTemplate.spec.template"
    " : dyn({0}).spec.template)"
)
_OBJECT, _OLD_OBJECT = _TEMPLATE.format("object"), _TEMPLATE.format("oldObject")


@dataclass(frozen=True)
class Target:
    """API resources that a policy evaluates.

    `changed` decides which updates are evaluated. Controllers add labels and remove finalizers of
    objects that exist already, and a denied update would keep such an object forever.
    """

    name: str
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
    "pods",
    {
        "": (
            *("pods", "pods/ephemeralcontainers", "pods/resize"),
            *("podtemplates", "replicationcontrollers"),
        ),
        "apps": ("daemonsets", "deployments", "replicasets", "statefulsets"),
        "batch": ("cronjobs", "jobs"),
    },
    f"{_OBJECT}.spec != {_OLD_OBJECT}.spec",
)
"""Pods, whatever made them, and the templates of Kubernetes' own kinds."""
ANNOTATED_PODS: Final = Target(
    "annotated-pods",
    PODS.resources,
    " || ".join(
        f"{_OBJECT}.?{field} != {_OLD_OBJECT}.?{field}"
        for field in ("spec", "metadata.?annotations", "metadata.?labels")
    ),
)
"""The same, for rules about annotations and labels."""
SERVICES: Final = Target("services", {"": ("services",)}, _CHANGED)
VOLUMES: Final = Target("volumes", {"": ("persistentvolumes",)})
"""Only their creation: the source is immutable, and binding a volume updates it."""
CLAIMS: Final = Target("claims", {"resource.k8s.io": ("resourceclaims", "resourceclaimtemplates")})
"""Only their creation: the specification is immutable."""


def accelerator(name: str) -> str:
    """Return the condition that an extended resource is an accelerator."""
    prefix = literal(DEVICE_CLASS_PREFIX)
    return (
        f"({name}.contains('/') && ({name}.startsWith({prefix})"
        f" || !{name}.lowerAscii().matches(r'^([^/]*\\.)?kubernetes\\.io/'))"
        f" && {accelerator_class(f'{name}.replace({prefix}, {literal(str())}, 1)')})"
    )


def accelerator_class(name: str) -> str:
    """Return the condition that the devices of a DRA device class are accelerators."""
    return f"!{name}.lowerAscii().matches(pattern(settings.otherDevices))"


def level(resource: str) -> str:
    """Return a list with the resources that state CPU or memory of a container `c`, or nothing."""
    return (
        "[c.?resources.orValue({}), variables.spec.?resources.orValue({})].filter(l,"
        f" '{resource}' in l.?limits.orValue({{}}) || '{resource}' in l.?requests.orValue({{}}))"
    )


def path(text: str) -> str:
    """Return the parts of an absolute path; CEL cannot resolve `..` in it."""
    return f"{text}.split('/').filter(p, p != '' && p != '.')"


def literal(value: Any) -> str:
    """Return a setting as a CEL literal, whose strings are written as in JSON."""
    return json.dumps(value)


_MOUNTS: Final = "c.?volumeMounts.orValue([])"
_VARIABLES: Final = {
    "template": _OBJECT,
    "spec": "variables.template.spec",
    "context": "variables.spec.?securityContext.orValue({})",
    "annotations": (
        "(request.resource.resource == 'pods' ? dyn(object).?metadata"
        " : request.resource.resource == 'podtemplates' ? dyn(object).template.?metadata"
        " : request.resource.resource == 'cronjobs'"
        " ? dyn(object).spec.jobTemplate.spec.template.?metadata"
        " : dyn(object).spec.template.?metadata).?annotations.orValue({})"
    ),
    "contexts": (
        "[variables.context] + variables.containers.map(c, c.?securityContext.orValue({}))"
    ),
    "containers": (
        "variables.spec.containers + variables.spec.?initContainers.orValue([])"
        " + variables.spec.?ephemeralContainers.orValue([])"
    ),
    "volumes": "variables.spec.?volumes.orValue([])",
    "mountsAtShm": (
        f"variables.containers.map(c, {_MOUNTS}"
        f".filter(m, {path('m.mountPath')} == ['dev', 'shm'] || m.mountPath.contains('..'))"
        ".map(m, m.name))"
    ),
    "memoryVolumes": "variables.volumes.filter(v, v.?emptyDir.?medium.orValue('') == 'Memory')",
    "gpuClaims": (
        "variables.spec.?resourceClaims.orValue([]).filter(r,"
        " [pairs(settings.claimDevices).filter(d, (variables.inNamespace + '/'"
        " + r.?resourceClaimTemplateName.or(r.?resourceClaimName).orValue('')).matches(d[0]))]"
        ".exists(d, d.size() == 0 || d[0][1] != '0')).map(r, r.name)"
    ),
    "gpuContainers": (
        f"variables.containers.filter(c, c.?resources.?limits.orValue({{}})"
        f".exists(n, {accelerator('n')} && c.resources.limits[n] != '0')"
        " || c.?resources.?claims.orValue([]).exists(u, u.name in variables.gpuClaims))"
    ),
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
        " + (o.apiVersion.matches('^([^./]+/)?[^/]+$|[.]k8s[.]io/') ? ''"
        " : '.' + o.apiVersion.split('/')[0]) + '/' + o.name)"
        " + variables.owners.filter(o, o.kind in ['ReplicaSet', 'Job'] && o.name.contains('-'))"
        ".map(o, variables.inNamespace + (o.kind == 'Job' ? '/CronJob/' : '/Deployment/')"
        " + o.name.substring(0, o.name.lastIndexOf('-')))"
    ),
}
"""Variables that any expression may use; a policy contains those that it does use."""

_REFERENCE = re.compile(r"\bvariables\.(\w+)")
_SETTING = re.compile(r"\b(?:(pattern|pairs)\()?settings\.(\w+)(?(1)\))")


@dataclass(frozen=True)
class Cel:
    """A rule in CEL.

    `violations` is a list of strings, the names of the violating places. It may use `variables.x`
    for the shared variables and for those of `variables`, `settings.x` for a setting of the rule,
    by its name in the configuration file, `pattern(settings.x)` for a list of patterns with `*` as
    one regular expression, and `pairs(settings.x)` for an object as a list of such an expression of
    each key with its value as a string. `partial` marks a rule of which one object decides a part.
    """

    violations: str
    target: Target = PODS
    variables: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False

    def expressions(self, settings: Mapping[str, Any], exempt: str) -> dict[str, str]:
        """Return `exempt`, `violations` and the variables that they use, with settings inserted."""
        defined = {"exempt": exempt, "violations": self.violations}
        known = {**_VARIABLES, **self.variables, **defined}
        names = dict.fromkeys(name for last in defined for name in _needed(last, known))
        return {
            name: _SETTING.sub(lambda match: _setting(match, settings), known[name])
            for name in names
        }


class Variables:
    """Variables of one policy, evaluated once for all of its rules.

    Variables of the same name differ between rules with other settings; they get a number.
    """

    def __init__(self) -> None:
        self._defined: dict[str, str] = {}

    def add(self, expressions: Mapping[str, str]) -> dict[str, str]:
        """Define the variables of a rule; return their names in the policy."""
        names: dict[str, str] = {}
        for name, text in expressions.items():
            text = _REFERENCE.sub(lambda match: f"variables.{names[match[1]]}", text)
            candidates = (name, *(f"{name}_{number}" for number in range(2, 1000)))
            names[name] = next(
                candidate for candidate in candidates if self._defined.get(candidate, text) == text
            )
            self._defined[names[name]] = text
        return names

    def manifests(self) -> list[Manifest]:
        """Return the variables of the policy, each before those that use it."""
        return [{"name": name, "expression": text} for name, text in self._defined.items()]


def pod(**violations: str) -> Cel:
    """Return the rule that fields of a pod specification violate by one condition each."""
    each = (f"({condition} ? ['{name}'] : [])" for name, condition in violations.items())
    return Cel(" + ".join(each))


def containers(violation: str, **variables: str) -> Cel:
    """Return the rule that a container `c` of a pod violates by a condition."""
    found = f"variables.containers.filter(c, {violation}).map(c, 'container ' + c.name)"
    return Cel(found, variables=variables)


def gpu_containers(violation: str, **variables: str) -> Cel:
    """Return the rule that a container `c` with GPUs violates by a condition."""
    found = f"variables.gpuContainers.filter(c, {violation}).map(c, 'container ' + c.name)"
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
    if match[1] == "pattern":
        return literal(pattern(value))
    if match[1] == "pairs":
        return literal([[pattern([key]), str(item)] for key, item in value.items()])
    return literal(value)
