"""The fixtures of every rule in the real engine: good, bad, unknown and remediated."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.toolchain import Toolchain
from kube import promoted_models
from policies.catalogue import RULES, RULES_BY_NAME
from tests.engine.policies.judged import CheckResult, Manifest, Run, program
from tests.policies import manifests
from tests.policies.cases import CASES
from tests.policies.harness import LIMITS, MAIN, POD, REMOVED, Case, changed
from tests.policies.test_rules import STRICT

REFERENCES = {
    *("namespace", "queue", "scheduling.volcano.sh/queue-name"),
    *("priorityClassName", "storageClassName"),
}
GPUS = f"{LIMITS}/nvidia.com~gpu"
# Fields that rules read, for fixtures that violate them by configuration or by a missing field.
CHECKED_FIELDS = {
    "gpu-whole-nodes": GPUS,
    "image-registry-allowed": f"{MAIN}/image",
    "gpu-budget": GPUS,
    "gpu-cost": GPUS,
    "priority-class-known": "metadata/name",
    "training-pod-group-whole": "metadata/name",
    "namespace-gpu-quota": "spec/hard",
    "inference-disruption-budget": "spec/selector",
    "autoscaled-without-replicas": "spec/replicas",
    "helm-release-judged": "spec/chart",
}
# Rules about the whole stack. Their messages name no resource, or one with a fixed name.
WHOLE_STACK_RULES = ("gpu-budget", "gpu-cost", "model-lineage-complete")
RESOURCE_CASES = {i: case for i, case in enumerate(CASES) if not case.of_stack}
STACK_CASES = {i: case for i, case in enumerate(CASES) if case.of_stack}


@pytest.fixture
def run(tmp_path: Path, tools: Toolchain) -> Run:
    return program(tmp_path, tools)


def isolated(value: Any, tag: str) -> Any:
    """Return a copy that shares no namespace, queue or class with the other fixtures."""
    if isinstance(value, list):
        return [isolated(item, tag) for item in value]
    if not isinstance(value, dict):
        return value
    result = {
        key: f"{item}-{tag}"
        if key in REFERENCES and isinstance(item, str) and not _is_fixed(item)
        else isolated(item, tag)
        for key, item in value.items()
    }
    metadata = result.get("metadata") if "kind" in value else None
    # Cluster-scoped objects have no namespace, so their names must differ.
    if isinstance(metadata, dict) and "namespace" not in metadata:
        name = metadata.get("name")
        if isinstance(name, str) and name != "unknown":
            metadata["name"] = f"{name}-{tag}"
    return result


def _is_fixed(name: str) -> bool:
    return name in ("unknown", promoted_models.NAMESPACE) or name.startswith("system-")


def tagged(fixtures: Iterable[tuple[int, list[Manifest]]]) -> list[Manifest]:
    return [item for index, stack in fixtures for item in isolated(stack, f"case{index}x")]


def unknown(case: Case) -> list[Manifest]:
    """Return the good fixture with unknown values where the bad one has wrong ones."""
    places = [place for place, _ in case.edits] or [CHECKED_FIELDS[case.rule]]
    good = case.build()
    judged = changed(good, *((place, "unknown") for place in places))
    if not case.of_stack:
        return [judged]
    rest = [item for item in manifests.whole_stack() if item != good]
    return [*rest, judged, *(build() for build in case.others)]


def merged(cases: dict[int, Case]) -> dict[str, Any]:
    """Return the merged configuration of all fixtures, with the queue names of the fixtures."""
    found: dict[str, Any] = {}
    for index, case in cases.items():
        for key, value in (case.config or {}).items():
            if key == "maxGpusPerQueue":
                value = {f"{queue}-case{index}x": limit for queue, limit in value.items()}
            found.setdefault(case.rule, {})[key] = value
    return found


def assert_every_fixture_is_reported(done: CheckResult, cases: dict[int, Case]) -> None:
    assert done.returncode != 0
    assert [report for report in done.reports if "itself failed" in report.message] == []
    reported = {
        (report.rule, report.level, place)
        for report in done.reports
        for place in (*report.places, "anywhere")
    }
    for index, case in cases.items():
        place = "anywhere" if case.rule in WHOLE_STACK_RULES else f"case{index}x"
        assert (case.rule, RULES_BY_NAME[case.rule].level.value, place) in reported


def test_every_resource_rule_reports_its_bad_fixtures(run: Run) -> None:
    stacks = ((i, [changed(case.build(), *case.edits)]) for i, case in RESOURCE_CASES.items())
    done = run("preview", tagged(stacks), merged(RESOURCE_CASES))
    assert_every_fixture_is_reported(done, RESOURCE_CASES)


def test_every_stack_rule_reports_its_bad_fixtures(run: Run) -> None:
    stacks = ((i, case.stack()) for i, case in STACK_CASES.items())
    done = run("preview", tagged(stacks), merged(STACK_CASES))
    assert_every_fixture_is_reported(done, STACK_CASES)


def test_no_rule_reports_good_fixtures(run: Run) -> None:
    done = run("preview", manifests.whole_stack(), STRICT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.reports == []


def test_unknown_values_violate_no_rule_and_do_not_stop_other_rules(run: Run) -> None:
    """The exceptions are releases, whose charts are never evaluated, and unknown kinds."""
    counted = [i for i, case in STACK_CASES.items() if case.rule == "gpu-budget"]
    budgets = {f"research-case{i}x": 6 for i in counted}
    config = {**merged(RESOURCE_CASES), "gpu-budget": {"maxGpusPerQueue": budgets}}
    done = run("preview", tagged((i, unknown(case)) for i, case in enumerate(CASES)), config)
    reported = {(report.rule, place) for report in done.reports for place in report.places}
    wrong = {(case.rule, f"case{i}x") for i, case in enumerate(CASES)} & reported
    assert {rule for rule, _ in wrong} == {"helm-release-judged", "kind-known"}, wrong
    assert "gpu-budget" not in {report.rule for report in done.reports}
    assert [report for report in done.reports if "can't run policy" in report.message] == []
    assert [report for report in done.reports if "itself failed" in report.message] == []
    # An unknown number of GPUs hides no violation: each job's missing queue is still reported.
    assert ("training-queue-declared", f"case{next(iter(RESOURCE_CASES))}x") in reported


def test_unknown_number_of_gpus_has_no_cost(run: Run) -> None:
    """This requires a separate stack: the GPUs of the other fixtures are known and have a cost."""
    (case,) = (case for case in CASES if case.rule == "gpu-cost")
    prices = {"hourlyPrices": {"nvidia.com/gpu": 2.5}}
    unknown_stack = tagged([(0, unknown(case))])
    within = run("preview", unknown_stack, {"gpu-cost": {**prices, "maxHourlyCost": 20}})
    assert "gpu-cost" not in {report.rule for report in within.reports}
    beyond = run("preview", unknown_stack, {"gpu-cost": {**prices, "maxHourlyCost": 0}})
    assert "gpu-cost" in {report.rule for report in beyond.reports}


def test_every_remediation_changes_the_registered_resource(run: Run, tmp_path: Path) -> None:
    volcano = changed(
        manifests.volcano_job(),
        (f"{POD}/tolerations", REMOVED),
        (f"{MAIN}/volumeMounts", REMOVED),
        (f"{POD}/volumes", REMOVED),
        (f"{POD}/hostNetwork", True),
    )
    batch = changed(
        manifests.batch_job(),
        ("metadata/annotations/pulumi.com~skipAwait", REMOVED),
        ("spec/template/spec/volumes/0/emptyDir", {}),
    )
    broken = {"digits", "indexed"}
    others = [
        item
        for item in manifests.whole_stack()
        if item["kind"] != "Job" or item["metadata"]["name"] not in broken
    ]
    repaired = {rule.name: {"enforcementLevel": "remediate"} for rule in RULES if rule.remedy}
    assert len(repaired) == 5
    repaired["shm-mounted"]["size"] = "2Gi"
    digits = "training/Job.batch.volcano.sh/digits"
    repaired["no-host-namespaces"] = {"systemWorkloads": [digits]}
    done = run("up", [*others, volcano, batch], repaired)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.reports == []
    written = [yaml.safe_load(path.read_text()) for path in (tmp_path / "rendered").rglob("*.yaml")]
    jobs = {item["metadata"]["name"]: item for item in written if item["kind"] == "Job"}
    pod = jobs["digits"]["spec"]["tasks"][0]["template"]["spec"]
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert pod["tolerations"] == [toleration]
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    memory = {"medium": "Memory", "sizeLimit": "2Gi"}
    assert pod["volumes"] == [{"name": "shared-memory", "emptyDir": memory}]
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert pod["containers"][0]["volumeMounts"] == mounts
    assert jobs["indexed"]["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"
    bounded = jobs["indexed"]["spec"]["template"]["spec"]["volumes"][0]["emptyDir"]
    assert bounded == {"medium": "Memory", "sizeLimit": "1Gi"}
