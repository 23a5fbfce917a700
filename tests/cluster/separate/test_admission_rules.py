"""Comparison of the rules in CEL and in Python, for every object of every fixture."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
import yaml

from policies.catalogue import RULES
from tests.cluster.admission import CHANGED_BY_THE_API, PARTIAL, SPACE, UNDECODED, Cluster, violated
from tests.cluster.api_server import Manifest
from tests.policies import fixtures


def required(objects: list[Manifest]) -> Iterator[Manifest]:
    """Yield objects to which pods refer; without them, the API server rejects the pods."""
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


@pytest.fixture
def fixture_objects(admission: Cluster) -> Iterator[dict[str, tuple[str, Manifest]]]:
    """Objects of all fixtures, in a cluster that contains the objects they require."""
    objects = fixtures.objects(SPACE)
    file = admission.platform.checkout / "required.yaml"
    file.write_text(yaml.safe_dump_all(required([item for _, item in objects.values()])))
    admission.apply(file)
    yield objects
    admission.platform.shell(f"kubectl delete --filename={file}")


def test_cel_and_python_rules_report_the_same_violations_for_every_fixture(
    admission: Cluster, fixture_objects: dict[str, tuple[str, Manifest]]
) -> None:
    configuration = admission.install("warn")
    differences: dict[str, list[str]] = defaultdict(list)
    seen: dict[str, int] = defaultdict(int)
    accepted = 0
    for name, manifest in fixture_objects.values():
        answer = admission.api.create(manifest, SPACE)
        if answer.status != 201:
            continue
        accepted += 1
        version, kind = manifest["apiVersion"], manifest["kind"]
        stored = violated({**answer.body, "apiVersion": version, "kind": kind}, configuration)
        written = violated(manifest, configuration) - CHANGED_BY_THE_API.get(name, set())
        undecided = PARTIAL | UNDECODED.get(name, set())
        more = (stored | written) - answer.warned - undecided
        for rule in more | (answer.warned - (stored & written)):
            differences[rule].append(f"{name} ({kind})")
        for rule in answer.warned:
            seen[rule] += 1
    assert differences == {}
    assert accepted > 600
    # test_model_admission.py tests this rule, because it changes the object of promoted models.
    with_cel = {rule.name for rule in RULES if rule.admission is not None}
    with_cel.remove("model-lineage-complete")
    assert with_cel == set(seen), "a rule that no fixture violates in the API server"
