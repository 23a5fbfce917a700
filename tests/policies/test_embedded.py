"""Objects in the texts of other objects."""

import json
from typing import Any

import pytest

from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import Document
from policies.evaluation import evaluate

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: ml}\n"
PRIVILEGED = f"{POD}spec: {{containers: [{{name: a, image: 'a:1', securityContext: {{privileged: true}}}}]}}\n"


def config_map(text: str) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "ml"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": text}}


def messages(manifest: dict[str, Any], rule: str = "") -> list[str]:
    found = evaluate([Document("a.yaml", manifest, None)], configure({}, RULES))
    return [item.message for item in found if item.mandatory and rule in ("", item.rule)]


@pytest.mark.parametrize(
    "text",
    [
        f"{POD}spec: " + "[" * 100_000 + "]" * 100_000,
        f"{POD}spec: &a\n  containers: [{{name: a, image: 'a:1'}}]\n  x: *a\n",
        "\n".join(
            [
                f"{POD}a0: &a0 [{', '.join('x' * 9)}]",
                *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)),
            ]
        ),
        f"{POD}a: \ud800\n",
    ],
    ids=["deep", "recursive", "multiplying", "surrogate"],
)
def test_a_text_beyond_the_limits_is_not_read(text: str) -> None:
    assert messages(config_map(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tcp}\ndata: {9000: 'ml/server:9000'}\n",
        PRIVILEGED.replace("{name: a,", "{annotations: {1: a, 2026-01-01: b}, name: a,", 1),
    ],
)
def test_keys_that_are_not_strings_are_read(text: str) -> None:
    found = messages(config_map(text))
    assert not any("itself failed" in message for message in found)
    assert bool(found) is ("privileged" in text)


def test_a_text_is_read_as_kubectl_reads_it() -> None:
    assert messages(config_map(PRIVILEGED.replace("true", "y")), "not-privileged")


def test_a_deep_json_patch_is_not_read() -> None:
    mutate = {"patchesJson6902": "[" * 100_000}
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "a"},
        "spec": {"rules": [{"name": "a", "mutate": mutate}]},
    }
    assert messages(json.loads(json.dumps(policy)), "kind-known")
