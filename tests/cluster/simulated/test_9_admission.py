"""Rules in CEL against the same rules in Python, in a real API server."""

import shlex
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.admission import Mode, manifests
from policies.catalogue import RULES
from policies.configuration import Configuration, configure
from policies.resources import Resource
from policies.views import View
from tests.cluster.api_server import ApiServer, Manifest, api_server
from tests.cluster.platform import Platform, copy_checkout
from tests.policies import fixtures
from tests.policies.harness import type_of

SPACE = "default"
SETTINGS = {
    "image-registry-allowed": {"allowedRegistries": ["registry.example.com", "127.0.0.1:5000"]}
}
CHANGED_BY_THE_API = {
    # Without the feature gate ImageVolume, the API server drops the volume's source.
    "an image that is a volume": {
        "image-digest-pinned",
        "image-registry-allowed",
        "image-tag-fixed",
    },
}
"""Violations of a manifest that the object does not contain, as the API server stores it."""


class Cluster:
    """An embedded cluster, its API server and the policies in it."""

    def __init__(self, platform: Platform, api: ApiServer) -> None:
        self.platform, self.api = platform, api

    def install(self, mode: Mode, settings: dict[str, Any] = SETTINGS) -> Configuration:
        """Replace the policies, wait until the API server uses them, return what they contain."""
        configuration = configure(settings, RULES)
        built = manifests(configuration, mode)
        file = self.platform.checkout / "policies.yaml"
        file.write_text(yaml.safe_dump_all(built))
        self.apply(file)
        self._await(mode)
        return configuration

    def apply(self, file: Path) -> None:
        command = ["kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(file)]
        self.platform.shell(shlex.join(command))

    def _await(self, mode: Mode) -> None:
        pod = {"kind": "Pod", "metadata": {"name": "probe"}, "spec": {"hostPID": True}}
        pod["spec"]["containers"] = [{"name": "main", "image": "image"}]  # type: ignore[index]
        for _ in range(60):
            answer = self.api.create(pod, SPACE)
            seen = "deny" if answer.denied else "warn" if answer.warned else "audit"
            if seen == mode:
                time.sleep(1)  # the last of the policies, which arrive together
                return
            time.sleep(0.5)
        raise AssertionError(f"the API server does not use the policies: {answer}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("admission")
    platform = Platform(copy_checkout(folder / "checkout"), folder / "state", "simulated")
    devcluster = ".venv/bin/python -m devcluster"
    try:
        platform.run(f"{devcluster} up --nodes simulated --simulated-nodes=0")
        with api_server(platform, folder) as api:
            yield Cluster(platform, api)
    finally:
        platform.run(f"{devcluster} down --purge --nodes simulated")


def required(objects: list[Manifest]) -> Iterator[Manifest]:
    """Yield what the pods of some objects name, without which the API server refuses them."""
    specs = [item.get("spec") or {} for item in objects if item["kind"] == "Pod"]
    for name in {spec["priorityClassName"] for spec in specs if "priorityClassName" in spec}:
        if not name.startswith("system-"):
            version = "scheduling.k8s.io/v1"
            yield {"apiVersion": version, "kind": "PriorityClass", "metadata": {"name": name}} | {
                "value": 100
            }
    for name in {spec["runtimeClassName"] for spec in specs if "runtimeClassName" in spec}:
        version = "node.k8s.io/v1"
        yield {"apiVersion": version, "kind": "RuntimeClass", "metadata": {"name": name}} | {
            "handler": "handler"
        }
    for name in {spec["serviceAccountName"] for spec in specs if "serviceAccountName" in spec}:
        metadata = {"name": name, "namespace": SPACE}
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def violated(manifest: Manifest, configuration: Configuration) -> set[str]:
    """Return the rules with CEL that an object violates in Python."""
    view = View(Resource(type_of(manifest), manifest))
    return {
        rule.name
        for rule, _, config in configuration.rules
        if rule.admission is not None and any(rule.violations(view, config))
    }


def test_every_object_of_every_fixture_violates_the_same_rules_as_in_python(
    cluster: Cluster,
) -> None:
    found = fixtures.objects(SPACE)
    file = cluster.platform.checkout / "required.yaml"
    file.write_text(yaml.safe_dump_all(required([item for _, item in found.values()])))
    cluster.apply(file)
    configuration = cluster.install("warn")
    differences: dict[str, list[str]] = defaultdict(list)
    seen: dict[str, int] = defaultdict(int)
    accepted = 0
    for name, manifest in found.values():
        answer = cluster.api.create(manifest, SPACE)
        if answer.status != 201:
            continue
        accepted += 1
        version, kind = manifest["apiVersion"], manifest["kind"]
        stored = violated({**answer.body, "apiVersion": version, "kind": kind}, configuration)
        written = violated(manifest, configuration) - CHANGED_BY_THE_API.get(name, set())
        for rule in (stored ^ answer.warned) | (written ^ answer.warned):
            differences[rule].append(f"{name} ({kind})")
        for rule in answer.warned:
            seen[rule] += 1
    assert differences == {}
    assert accepted > 300
    with_cel = {rule.name for rule in RULES if rule.admission is not None}
    assert with_cel == set(seen), "a rule that no fixture violates in the API server"
