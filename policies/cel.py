"""Rules in CEL, the language of ValidatingAdmissionPolicies.

A rule that can be evaluated on a single object has, in addition to its Python function, a CEL
expression that returns the violating parts of the object. `policies.admission` builds
ValidatingAdmissionPolicies from these expressions. `policies.cel_objects` contains the parts that
expressions share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.cel_objects import (
    ANNOTATED_PODS,
    CLAIMS,
    COMMANDS,
    MODEL_PODS,
    PODS,
    PROMOTED_MODELS,
    SERVICES,
    VARIABLES,
    VOLUMES,
    Manifest,
    Target,
    accelerator,
    accelerator_class,
    literal,
    path,
    resources_that_set,
)

__all__ = [
    "ANNOTATED_PODS",
    "CLAIMS",
    "COMMANDS",
    "MODEL_PODS",
    "PODS",
    "PROMOTED_MODELS",
    "SERVICES",
    "VOLUMES",
    "Cel",
    "Manifest",
    "Target",
    "Variables",
    "accelerator",
    "accelerator_class",
    "containers",
    "gpu_containers",
    "images",
    "literal",
    "path",
    "pattern",
    "pod",
    "resources_that_set",
    "volumes",
]

_REFERENCE = re.compile(r"\bvariables\.(\w+)")
_SETTING = re.compile(r"\b(?:(pattern|pairs)\()?settings\.(\w+)(?(1)\))")


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
