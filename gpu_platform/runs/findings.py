"""Policy findings for the objects of a run, without Pulumi."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gitops.errors import GitopsError
from infra.manifests import Manifest
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import Finding, evaluate
from policies.rule import ConfigurationError


def read_settings(file: Path) -> dict[str, Any]:
    """Read a configuration of the policy pack.

    Raise GitopsError if the file cannot be read or is not a JSON object.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise GitopsError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise GitopsError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise GitopsError(f"{file} is not a policy pack configuration: it must be a JSON object")
    return content


def findings(
    run: str,
    manifests: Sequence[Manifest],
    namespace: Any,
    queues: Iterable[str],
    settings: Mapping[str, Any],
) -> list[Finding]:
    """Return the findings for a run's objects, assuming that their namespace and queues exist."""
    existing: dict[str, dict[str, Any]] = {
        "namespace-default-deny": {"existingNamespaces": [namespace]},
        "namespace-gpu-quota": {"existingNamespaces": [namespace]},
        "training-queue-declared": {"existingQueues": [*queues]},
    }
    values = dict(settings)
    for rule, known in existing.items():
        configured = values.get(rule, {})
        values[rule] = {**known, **configured} if isinstance(configured, dict) else known
    try:
        configuration = configure(values, RULES)
    except ConfigurationError as error:
        raise GitopsError(f"the policy pack configuration is not valid: {error}") from None
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*manifests]})
    # Other objects of the stack are not available, so rules about the whole stack are skipped.
    return evaluate(list(read(run, text.encode())), configuration, whole_stack=False)
