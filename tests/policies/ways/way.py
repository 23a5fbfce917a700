"""Evasions of the rules: a good manifest and an edit that a rule must reject."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from policies.catalogue import RULES
from policies.configuration import configure
from policies.evaluation import applicable_rules
from policies.resources import Resource
from policies.rule import Rule, RuleConfig
from policies.views import Stack, View
from tests.policies.harness import Manifest, changed, type_of

GOOD = Path(__file__).parents[1] / "files" / "good"
TOKEN = "type token"
"""Key in a manifest that overrides the type token derived from `apiVersion` and `kind`."""

CONFIG = {
    "namespace-gpu-quota": {"existingNamespaces": ["team"]},
    "namespace-default-deny": {"existingNamespaces": ["team"]},
    "training-queue-declared": {"existingQueues": ["team"]},
}


@dataclass(frozen=True)
class Way:
    """One edit to a good manifest.

    `base` names a file of `files/good`; paths of `edits` begin with the number of the document.
    `rules` lists the rules that should reject it, separated by spaces; empty means any rule.
    """

    description: str
    base: str
    rules: str
    edits: tuple[tuple[str, Any], ...]
    config: Manifest = field(default_factory=dict)

    @property
    def is_rejected(self) -> bool:
        """True if one of the rules rejects the edited manifest but not the good one."""
        new = rejecting_rules(changed(documents(self.base), *self.edits), self.config)
        new -= _rules_rejecting_good(self.base, json.dumps(self.config))
        return bool(new & set(self.rules.split())) if self.rules else bool(new)


def way(description: str, base: str, rules: str, *edits: tuple[str, Any], **config: Any) -> Way:
    """Create a `Way`. Keywords are rule settings, with underscores instead of hyphens."""
    settings = {name.replace("_", "-"): value for name, value in config.items()}
    return Way(description, base, rules, edits, settings)


@cache
def documents(base: str) -> Any:
    """Return the documents of a good manifest; `changed` copies them."""
    text = (GOOD / f"{base}.yaml").read_text()
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def rejecting_rules(manifests: list[Manifest], config: Manifest, *only: str) -> set[str]:
    """Return the mandatory rules that the manifests violate, as in the pack and the check.

    `only` names the rules to evaluate; empty means all rules.
    """
    existing = config.get("manifest-readable", {}).get("existingObjects", ())
    views = [View(_resource(manifest, existing)) for manifest in manifests]
    stack = Stack(views)
    found = set()
    for rule, mandatory, settings in _applied(json.dumps(config)):
        if not mandatory or (only and rule.name not in only):
            continue
        if rule.scope == "stack":
            found |= {rule.name} if any(rule.check(stack, settings)) else set()
        else:
            found |= {rule.name for view in views if any(rule.violations(view, settings))}
    return found


@cache
def _rules_rejecting_good(base: str, config: str) -> frozenset[str]:
    """Return the mandatory rules that a good manifest violates."""
    return frozenset(rejecting_rules(documents(base), json.loads(config)))


@cache
def _applied(config: str) -> list[tuple[Rule[Any], bool, RuleConfig]]:
    """Return the rules to apply, for settings given as JSON so that they can be a cache key."""
    return applicable_rules(configure(CONFIG | json.loads(config), RULES), whole_stack=True)


def _resource(manifest: Manifest, existing: Sequence[str]) -> Resource:
    properties = {key: value for key, value in manifest.items() if key != TOKEN}
    return Resource(manifest.get(TOKEN) or type_of(manifest), properties, existing=existing)
