"""The failure recorder: permissions, network access and volumes of its pod."""

from typing import Any

import pulumi
import pytest

from infra.failure_recorder import FailureRecorder, FailureRecorderArgs, manifests
from infra.manifests import Manifest
from infra.settings.monitoring import RecorderSettings
from infra.training_run import manifests as run_objects
from kube.names import CHECKPOINTS_VOLUME, RUN_LABEL, WORKLOAD_LABEL
from tests.infra.examples import good, problems
from tests.infra.test_pods import NODES
from tests.infra.test_training_run import args


def built(*, isolated: bool = True, **settings: Any) -> dict[str, Manifest]:
    """Return the objects by kind."""
    recorder_args = FailureRecorderArgs(
        recorder=RecorderSettings.model_validate(settings),
        namespace="ml",
        image="registry/recorder@sha256:1",
        claims={"checkpoints": "team-checkpoints"},
        gpu_nodes=NODES,
        isolated=isolated,
    )
    return {each["kind"]: each for each in manifests(recorder_args)}


def test_unknown_claims_are_reported_without_a_traceback() -> None:
    recorder = RecorderSettings(claims=["models"])
    recorder_args = FailureRecorderArgs(
        recorder=recorder, namespace="ml", image="", claims={"checkpoints": ""}, gpu_nodes=NODES
    )
    with pytest.raises(pulumi.RunError, match=r"'models', which is not a key .*checkpoints"):
        FailureRecorder("recorder", recorder_args)


def test_recorder_can_only_read_pods_logs_and_events() -> None:
    rules = built()["Role"]["rules"]
    granted = {
        (kind, verb) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]
    }
    assert granted == {("pods", "list"), ("pods", "watch"), ("pods/log", "get"), ("events", "list")}
    assert built()["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "failure-recorder", "namespace": "ml"}
    ]


def test_recorder_pod_has_no_gpu_no_root_user_and_no_writable_root() -> None:
    spec = built()["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert set(container["resources"]["limits"]) == {"memory"}
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "runtimeClassName" not in spec


def test_recorder_prefers_nodes_without_gpus_and_blocks_no_whole_node_job() -> None:
    template = built()["Deployment"]["spec"]["template"]
    assert WORKLOAD_LABEL not in template["metadata"]["labels"]
    affinity = template["spec"]["affinity"]["nodeAffinity"]
    [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"] == [
        {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}
    ]


def test_only_the_recorder_pod_has_a_token_which_expires() -> None:
    objects = built()
    spec = objects["Deployment"]["spec"]["template"]["spec"]
    assert objects["ServiceAccount"]["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    [token] = [volume for volume in spec["volumes"] if volume["name"] == "token"]
    [first, *_] = token["projected"]["sources"]
    assert first["serviceAccountToken"]["expirationSeconds"] == 3607


def test_claim_is_mounted_below_its_name_in_the_cluster() -> None:
    spec = built()["Deployment"]["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts["claim-0"] == {"name": "claim-0", "mountPath": "/claims/team-checkpoints"}


def test_isolated_recorder_can_reach_only_the_api_servers_ports() -> None:
    policy = built(api_ports=[6443])["NetworkPolicy"]["spec"]
    labels = built()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["egress"] == [{"ports": [{"port": 6443, "protocol": "TCP"}]}]
    assert "NetworkPolicy" not in built(isolated=False)


def test_limits_are_passed_to_the_program() -> None:
    container = built(lines=7, pods=2)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert {"--lines=7", "--kib=64", "--failures=10", "--pods=2"} < set(container["command"])


def test_recorder_and_jobs_use_the_same_label_and_volume_name() -> None:
    task = run_objects(args(), "digits-1", "image")[-1]["spec"]["tasks"][0]["template"]
    assert task["metadata"]["labels"][RUN_LABEL] == "digits-1"
    volumes = task["spec"]["volumes"]
    [volume] = [volume for volume in volumes if volume["name"] == CHECKPOINTS_VOLUME]
    assert volume["persistentVolumeClaim"]["claimName"] == "ckpt"


def configured(**recorder: Any) -> dict[str, Any]:
    values = good()
    values["images"]["workloads"]["recorder"] = dict(values["images"]["workloads"]["training"])
    values["logs"] = {"recorder": recorder}
    return values


def test_a_recorder_with_its_image_and_claim_is_accepted() -> None:
    assert problems(configured()) == []


def test_undeclared_image_is_reported() -> None:
    [problem] = problems(configured(image="nowhere"))
    assert "gpu-platform:logs.recorder.image is 'nowhere'" in problem


def test_claims_must_exist_and_allow_read_write_many() -> None:
    values = configured(claims=["nothing"])
    [problem] = problems(values)
    assert "gpu-platform:logs.recorder.claims[0] is 'nothing'" in problem
    values = configured()
    values["storage"]["claims"]["checkpoints"]["access_modes"] = ["ReadWriteOnce"]
    assert any(
        "ReadWriteMany claim, or remove the recorder" in problem for problem in problems(values)
    )
