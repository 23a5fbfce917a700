import copy
from typing import Any

import jsonschema
import pytest
import yaml

from devcluster.paths import CHECKOUT
from tools.generate.configuration import stack_schema

SCHEMA = stack_schema()
FILES = sorted(CHECKOUT.glob("Pulumi.*.yaml"))


def problems(document: dict[str, Any]) -> list[str]:
    return [
        error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)
    ]


def staging() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "Pulumi.staging.yaml").read_text())
    return found


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_environment_is_accepted(file: Any) -> None:
    assert problems(yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gpu-platform:traning", {}),
        ("gpu-platform:cluster.contxt", "x"),
        ("gpu-platform:tenancy.quota.gpus", "8"),
        ("gpu-platform:tenancy.quota.gpus", -1),
        ("gpu-platform:training.jobs.cifar.nodes", 0),
        ("gpu-platform:training.jobs.cifar.retries", "three"),
        ("gpu-platform:tenancy.pod_security", "strict"),
        ("gpu-platform:registry_password", "in plain text"),
    ],
)
def test_the_schema_rejects_mistakes(path: str, value: Any) -> None:
    document = copy.deepcopy(staging())
    place = document["config"]
    *parents, last = path.split(".")
    for step in parents:
        place = place[step]
    place[last] = value
    assert problems(document)


def test_secrets_and_other_namespaces_are_accepted() -> None:
    document = staging()
    document["config"]["gpu-platform:registry_password"] = {"secure": "v1:abc"}
    document["config"]["kubernetes:context"] = "elsewhere"
    job = document["config"]["gpu-platform:training"]["jobs"]["cifar"]
    job["env"] = {"TOKEN": {"secure": "v1:abc"}, "PLAIN": "x"}
    job["cpu"] = 1.5
    assert problems({**document, "encryptionsalt": "v1:x", "secretsprovider": "awskms://x"}) == []


def test_schema_describes_each_key() -> None:
    cluster = SCHEMA["properties"]["config"]["properties"]["gpu-platform:cluster"]
    definition = SCHEMA["$defs"][cluster["$ref"].rpartition("/")[2]]
    assert "Context in the kubeconfig" in definition["properties"]["context"]["description"]
    assert "title" not in definition["properties"]["context"]
