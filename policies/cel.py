"""Rules in CEL, the language of ValidatingAdmissionPolicies.

A rule that can be evaluated on a single object has, in addition to its Python function, a CEL
expression that returns the violating parts of the object. `policies.admission` builds
ValidatingAdmissionPolicies from these expressions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kube import promoted_models
from kube.accelerators import DEVICE_CLASS_PREFIX
from kube.names import BUS_GROUP

Manifest = dict[str, Any]

_SPEC_CHANGED: Final = "dyn(object).spec != dyn(oldObject).spec"
_TEMPLATE: Final = (
    "(request.resource.resource == 'pods' ? dyn({0})"
    " : request.resource.resource == 'podtemplates' ? dyn({0}).template"
    " : request.resource.resource == 'cronjobs' ? dyn({0}).spec.jobTemplate.spec.template"
    " : dyn({0}).spec.template)"
)
_OBJECT, _OLD_OBJECT = _TEMPLATE.format("object"), _TEMPLATE.format("oldObject")

_REFERENCE = re.compile(r"\bvariables\.(\w+)")
_SETTING = re.compile(r"\b(?:(pattern|pairs)\()?settings\.(\w+)(?(1)\))")


@dataclass(frozen=True)
class Target:
    """API resources that a policy evaluates.

    `update_condition` is the CEL condition under which updates are checked; if it is empty, only
    creations are checked. All other updates must be allowed: controllers must be able to label
    existing objects, and to remove the finalizers that block an object's deletion. `object_names`
    limits the policy to objects with these names, and `parameters` is the namespace and name of a
    ConfigMap that the policy's expressions read as `params`.
    """

    name: str
    resources: Mapping[str, tuple[str, ...]]
    update_condition: str = ""
    object_names: tuple[str, ...] = ()
    parameters: tuple[str, str] | None = None

    def rules(self) -> list[Manifest]:
        """Return the resourceRules of the policy."""
        operations = ["CREATE", "UPDATE"] if self.update_condition else ["CREATE"]
        return [
            {
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": operations,
                "resources": list(names),
                **({"resourceNames": list(self.object_names)} if self.object_names else {}),
            }
            for group, names in self.resources.items()
        ]

    def conditions(self) -> list[Manifest]:
        """Return the matchConditions of the policy."""
        if not self.update_condition:
            return []
        return [
            {"name": "changed", "expression": f"oldObject == null || ({self.update_condition})"}
        ]


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
"""Pods, regardless of their creator, and the pod templates of built-in kinds."""
ANNOTATED_PODS: Final = Target(
    "annotated-pods",
    PODS.resources,
    " || ".join(
        f"{_OBJECT}.?{field} != {_OLD_OBJECT}.?{field}"
        for field in ("spec", "metadata.?annotations", "metadata.?labels")
    ),
)
"""The resources of `PODS`, for rules about annotations and labels."""
MODEL_PODS: Final = Target(
    "model-pods",
    PODS.resources,
    ANNOTATED_PODS.update_condition,
    parameters=(promoted_models.NAMESPACE, promoted_models.NAME),
)
"""The resources of `PODS`, for rules that compare served models with promoted models."""
PROMOTED_MODELS: Final = Target(
    "promoted-models",
    {"": ("configmaps",)},
    "dyn(object).?data != dyn(oldObject).?data",
    object_names=(promoted_models.NAME,),
)
SERVICES: Final = Target("services", {"": ("services",)}, _SPEC_CHANGED)
VOLUMES: Final = Target("volumes", {"": ("persistentvolumes",)})
"""Evaluated only on creation: a volume's source is immutable, and updates that bind the volume to a
claim must not be denied."""
CLAIMS: Final = Target("claims", {"resource.k8s.io": ("resourceclaims", "resourceclaimtemplates")})
"""Evaluated only on creation, because the specification of a claim is immutable."""
COMMANDS: Final = Target(
    "commands",
    {BUS_GROUP: ("commands",)},
    "dyn(object).?target != dyn(oldObject).?target",
)
"""Volcano's Commands, which change jobs and queues."""


def accelerator(name: str) -> str:
    """Return the condition under which an extended resource is an accelerator."""
    prefix = literal(DEVICE_CLASS_PREFIX)
    return (
        f"({name}.contains('/') && ({name}.startsWith({prefix})"
        f" || !{name}.lowerAscii().matches(r'^([^/]*\\.)?kubernetes\\.io/'))"
        f" && {accelerator_class(f'{name}.replace({prefix}, {literal(str())}, 1)')})"
    )


def accelerator_class(name: str) -> str:
    """Return the condition under which the devices of a DRA device class are accelerators."""
    return f"!{name}.lowerAscii().matches(pattern(settings.otherDevices))"


def resources_that_set(resource: str) -> str:
    """Return a CEL expression for the `resources` blocks that set `resource` (`cpu` or `memory`).

    The expression is a list with the block of container `c` and the block of its pod. A block is
    omitted if it sets neither a request nor a limit for `resource`.
    """
    return (
        "[c.?resources.orValue({}), variables.spec.?resources.orValue({})].filter(l,"
        f" '{resource}' in l.?limits.orValue({{}}) || '{resource}' in l.?requests.orValue({{}}))"
    )


def path(text: str) -> str:
    """Return an expression for the parts of an absolute path; `..` is kept, not resolved."""
    return f"{text}.split('/').filter(p, p != '' && p != '.')"


def literal(value: Any) -> str:
    """Return a value as a CEL literal; CEL accepts JSON strings, numbers, booleans and lists."""
    return json.dumps(value)


MOUNTS: Final = "c.?volumeMounts.orValue([])"
VARIABLES: Final = {
    "template": _OBJECT,
    "spec": "variables.template.spec",
    "context": "variables.spec.?securityContext.orValue({})",
    "annotations": "variables.template.?metadata.?annotations.orValue({})",
    "contexts": (
        "[variables.context] + variables.containers.map(c, c.?securityContext.orValue({}))"
    ),
    "containers": (
        "variables.spec.containers + variables.spec.?initContainers.orValue([])"
        " + variables.spec.?ephemeralContainers.orValue([])"
    ),
    "volumes": "variables.spec.?volumes.orValue([])",
    "mountsAtShm": (
        f"variables.containers.map(c, {MOUNTS}"
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
        " + variables.owners.filter(o, (o.kind == 'ReplicaSet' && o.apiVersion.startsWith('apps/')"
        " || o.kind == 'Job' && o.apiVersion.startsWith('batch/')) && o.name.contains('-'))"
        ".map(o, variables.inNamespace + (o.kind == 'Job' ? '/CronJob/' : '/Deployment/')"
        " + o.name.substring(0, o.name.lastIndexOf('-')))"
    ),
}
"""Variables that any expression may use; a policy contains only the ones that it needs."""


@dataclass(frozen=True)
class Cel:
    """A rule in CEL.

    `violations` is an expression that returns the names of the violating parts. It may use:

    - `variables.x`: a shared variable, or one of `variables`;
    - `settings.x`: a setting of the rule, by its name in the configuration file;
    - `pattern(settings.x)`: a list of patterns with `*` and `?`, as one regular expression;
    - `pairs(settings.x)`: an object, as a list of pairs. Each pair contains the regular expression
      for a key, and the key's value as a string.

    `partial` marks a rule that can only partly be evaluated on one object. `requires` names a
    setting; if that setting is empty, the rule is omitted from the policies.
    """

    violations: str
    target: Target = PODS
    variables: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    requires: str = ""

    def expressions(self, settings: Mapping[str, Any], exempt: str) -> dict[str, str]:
        """Return `exempt`, `violations` and the variables that they use, with settings inserted."""
        defined = {"exempt": exempt, "violations": self.violations}
        known = {**VARIABLES, **self.variables, **defined}
        names = dict.fromkeys(name for last in defined for name in _dependencies(last, known))
        return {
            name: _SETTING.sub(lambda match: _setting_literal(match, settings), known[name])
            for name in names
        }


class Variables:
    """Variables of one policy, evaluated once for all of its rules.

    If two rules define the same variable differently, because their settings differ, a number is
    appended to the name of the second variable.
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
        """Return the variables of the policy, each before the variables that use it."""
        return [{"name": name, "expression": text} for name, text in self._defined.items()]


def pod(**violations: str) -> Cel:
    """Return a rule that reports each field of a pod specification whose condition is true."""
    each = (f"({condition} ? ['{name}'] : [])" for name, condition in violations.items())
    return Cel(" + ".join(each))


def containers(violation: str, **variables: str) -> Cel:
    """Return a rule that reports each container `c` for which a condition is true."""
    names = f"variables.containers.filter(c, {violation}).map(c, 'container ' + c.name)"
    return Cel(names, variables=variables)


def gpu_containers(violation: str, **variables: str) -> Cel:
    """Return a rule that reports each GPU container `c` for which a condition is true."""
    names = f"variables.gpuContainers.filter(c, {violation}).map(c, 'container ' + c.name)"
    return Cel(names, variables=variables)


def volumes(violation: str, **variables: str) -> Cel:
    """Return a rule that reports each volume `v` for which a condition is true."""
    names = f"variables.volumes.filter(v, {violation}).map(v, 'volume ' + v.name)"
    return Cel(names, variables=variables)


def images(violation: str, **variables: str) -> Cel:
    """Return a rule that reports each image `i` for which a condition is true."""
    return Cel(f"variables.images.filter(i, {violation})", variables=variables)


def _dependencies(name: str, known: Mapping[str, str]) -> list[str]:
    """Return a variable's dependencies, followed by its own name, in the order of evaluation."""
    used = [
        each for other in _REFERENCE.findall(known[name]) for each in _dependencies(other, known)
    ]
    return [*used, name]


def pattern(patterns: Sequence[str]) -> str:
    """Return the regular expression (RE2) for patterns with the wildcards `*` and `?`."""
    if not patterns:
        return r"[^\s\S]"
    each = ("".join(map(_wildcard, text)) for text in patterns)
    return f"^(?s:{'|'.join(each)})$"


def _wildcard(character: str) -> str:
    return {"*": ".*", "?": "."}.get(character) or re.escape(character)


def _setting_literal(match: re.Match[str], settings: Mapping[str, Any]) -> str:
    value = settings[match[2]]
    if match[1] == "pattern":
        return literal(pattern(value))
    if match[1] == "pairs":
        return literal([[pattern([key]), str(item)] for key, item in value.items()])
    return literal(value)
