"""Tables of rights, computed from the Roles."""

from typing import Any

import pytest

from tools.generate.rights import is_allowed, pipeline_rows, team_rows

RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["a"]},
]
ROLES: list[dict[str, Any]] = [
    {"metadata": {"name": "team", "namespace": "ml"}, "rules": RULES},
    {
        "metadata": {"name": "team", "namespace": "ml"},
        "roleRef": {"name": "team"},
        "subjects": [{"name": "vision"}],
    },
]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("get pods", True),
        ("get pods/worker-0", True),
        ("get pods --subresource=log", True),
        ("create pods --subresource=exec", False),
        ("patch deployments.apps", True),
        ("patch deployments", False),
        ("get configmaps/a", True),
        ("get configmaps/b", False),
        ("get configmaps", False),
    ],
)
def test_request_is_evaluated_by_the_rules_of_the_group(request_: str, expected: bool) -> None:
    assert is_allowed(ROLES, "vision", request_) is expected
    assert not is_allowed(ROLES, "others", request_)


def test_every_column_contains_allowed_and_denied_requests() -> None:
    for rows in (team_rows(), pipeline_rows()):
        columns = list(zip(*rows, strict=True))[2:]
        assert all({"yes", "no"} <= set(column) for column in columns)
