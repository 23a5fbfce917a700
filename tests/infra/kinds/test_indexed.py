from dataclasses import replace

import pytest

from infra.kinds import indexed
from infra.kinds.gang import Gang
from infra.manifests import Manifest
from tests.infra.kinds.test_volcano import GANG as VOLCANO_GANG

GANG = replace(VOLCANO_GANG, deadline_seconds=7200)


def build(gang: Gang) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in indexed.build(gang)}


def container(gang: Gang) -> Manifest:
    found: Manifest = build(gang)["Job"]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_job_is_created_after_the_objects_that_its_pods_need() -> None:
    kinds = [manifest["kind"] for manifest in indexed.build(GANG)]
    assert kinds == ["PodGroup", "Service", "Job"]


@pytest.mark.parametrize("size", [1, 2, 33])
def test_gang_and_job_have_the_same_size(size: int) -> None:
    built = build(replace(GANG, size=size))
    assert built["PodGroup"]["spec"]["minMember"] == size
    assert built["Job"]["spec"]["completions"] == size
    assert built["Job"]["spec"]["parallelism"] == size


def test_pods_belong_to_the_podgroup_and_its_queue() -> None:
    built = build(GANG)
    assert built["PodGroup"]["spec"]["queue"] == "research"
    assert built["PodGroup"]["spec"]["priorityClassName"] == "high"
    template = built["Job"]["spec"]["template"]
    assert template["spec"]["schedulerName"] == "volcano"
    assert template["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": built["PodGroup"]["metadata"]["name"],
        "scheduling.volcano.sh/queue-name": "research",
    }


def test_fatal_exit_codes_fail_the_job_and_evictions_are_not_counted() -> None:
    spec = build(GANG)["Job"]["spec"]
    assert spec["backoffLimit"] == 5 * 4
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    fail, ignore = spec["podFailurePolicy"]["rules"]
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"] == {"containerName": "training", "operator": "In", "values": [64]}
    assert ignore == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }


def test_deadline_applies_to_the_whole_job() -> None:
    spec = build(GANG)["Job"]["spec"]
    assert spec["activeDeadlineSeconds"] == 7200


def test_finished_runs_are_not_removed_after_a_ttl() -> None:
    # Otherwise, the next update after a refresh would create the run again.
    assert "ttlSecondsAfterFinished" not in build(GANG)["Job"]["spec"]


def test_pods_can_resolve_rank_0_before_it_is_ready() -> None:
    service = build(GANG)["Service"]
    spec = build(GANG)["Job"]["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"gpu-platform.dev/run": "digits-0123abcd"}
    assert spec["subdomain"] == service["metadata"]["name"]
    env = {variable["name"]: variable for variable in container(GANG)["env"]}
    assert env["MASTER_ADDR"]["value"] == f"digits-0123abcd-0.{spec['subdomain']}"
    assert env["MASTER_PORT"]["value"] == "23456"
    path = env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_a_single_node_needs_no_service() -> None:
    single_pod = replace(GANG, size=1)
    assert set(build(single_pod)) == {"PodGroup", "Job"}
    assert "--standalone" in container(single_pod)["command"]
    assert "subdomain" not in build(single_pod)["Job"]["spec"]["template"]["spec"]


def test_pulumi_does_not_wait_for_the_objects() -> None:
    for manifest in indexed.build(GANG):
        assert manifest["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"


def test_job_can_succeed_with_its_first_pod() -> None:
    spec = build(replace(GANG, success="first"))["Job"]["spec"]
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert "successPolicy" not in build(GANG)["Job"]["spec"]


def test_a_job_without_fatal_exit_codes_retries_every_failure() -> None:
    (rule,) = build(replace(GANG, fatal_exit_codes=()))["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"


def test_suspended_run_sets_suspend_in_the_job() -> None:
    assert build(replace(GANG, suspend=True))["Job"]["spec"]["suspend"] is True


def test_network_topology_is_set_on_the_podgroup() -> None:
    built = build(replace(GANG, network_topology={"mode": "soft"}))
    assert built["PodGroup"]["spec"]["networkTopology"] == {"mode": "soft"}
