"""Detection of literals that look like secrets, so that reports never show them.

These literals are masked even if the configuration of the policy pack accepts them.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gitops.preview.changes import after, before, changes
from gitops.preview.events import Plan, plan
from gitops.secrets import Mask
from policies.rules.secret_values import (
    EnvironmentConfig,
    no_literal_secrets,
    no_secrets_in_manifests,
)
from policies.secret_patterns import ANNOTATION, ARGUMENT, SETTING, VALUE, is_secret, settings
from policies.views import View

_DEFAULTS: Final = EnvironmentConfig()
_SEPARATOR: Final = re.compile(rf"[=:\s]+{ANNOTATION}")


def plan_without_literals(events: list[dict[str, Any]], hide: Mask) -> Plan:
    """Return the plan, with the secrets in `hide` and literals that look like secrets masked."""
    masked_plan = plan(events, hide)
    resources = changes(masked_plan.steps)
    hidden = {*literals(before(resources)), *literals(after(resources))}
    return plan(events, hide.with_secrets(hidden)) if hidden else masked_plan


def literals(views: Iterable[View]) -> Iterator[str]:
    """Yield all literals that a report must not show."""
    for view in views:
        for rule in (no_literal_secrets, no_secrets_in_manifests):
            for violation in rule.violations(view, _DEFAULTS):
                yield from _secrets_in_value(violation.node.value)


def secrets_in_setting(name: str, value: Any) -> Iterator[str]:
    """Yield the parts of a setting or environment variable that must not appear in a report."""
    if isinstance(value, list | tuple):
        yield from _sensitive_parts(" ".join(map(str, value)))
    elif isinstance(value, str | int | float) and is_secret(name, str(value)):
        yield from _secrets_in_value(str(value))
    elif isinstance(value, str):
        yield from _sensitive_parts(value)


def _secrets_in_value(value: Any) -> Iterator[str]:
    """Yield the texts to mask in a value that contains a secret.

    If the secret can be located in a list or a multi-line text, only the secret is masked.
    Otherwise, every item or the whole text is masked. A single-line text is always masked as a
    whole.
    """
    if isinstance(value, list):
        parts = [*_sensitive_parts(" ".join(map(str, value)))]
        yield from parts or map(str, value)
        return
    text = str(value)
    parts = [*_sensitive_parts(text)]
    yield from parts
    if not parts or "\n" not in text:
        yield text


def _sensitive_parts(text: str) -> Iterator[str]:
    yield from (match.group() for match in VALUE.finditer(text))
    for pattern in (ARGUMENT, SETTING):
        for setting in settings(pattern, text):
            yield _SEPARATOR.split(setting.strip(), maxsplit=1)[-1].strip("\"'")
