"""Objects of stacks with every configuration key, sent to an API server."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.pods import GpuNodes, Pod, Rdma, pod_template
from infra.settings.tenancy import TenancySettings
from infra.tenancy import namespace
from tests.cluster.platform import Platform
from tests.engine.test_schemas import STACKS
from tests.infra.conftest import Provision, provision  # noqa: F401  a fixture

OPERATOR_GROUPS = {"gateway.networking.k8s.io", "keda.sh", "monitoring.coreos.com"}
"""API groups that this cluster lacks; tests/operators sends their objects to an API server."""

CREATED_FIRST = ("Namespace", "Queue", "PriorityClass")
"""Kinds that must exist before the API server accepts objects of other kinds."""


@pytest.mark.parametrize("stack", STACKS)
def test_api_server_accepts_the_objects_of_every_stack(
    stack: str,
    control_plane: Platform,
    provision: Provision,  # noqa: F811
    tmp_path: Path,
) -> None:
    values, secrets = STACKS[stack]
    plan = provision(values, tuple(secrets))
    objects = [
        plan.inputs(name) for name, resource in plan.resources.items() if is_object(resource.type)
    ]
    known = [each for each in objects if group(each) not in OPERATOR_GROUPS]
    first = [each for each in known if each["kind"] in CREATED_FIRST]
    # The namespace of Prometheus is missing if the stack does not install Prometheus.
    declared = {each["metadata"]["name"] for each in first if each["kind"] == "Namespace"}
    used = {each["metadata"].get("namespace") for each in known} - {None, "default", *declared}
    kind = {"apiVersion": "v1", "kind": "Namespace"}
    first = [*({**kind, "metadata": {"name": name}} for name in sorted(used)), *first]
    rest = [each for each in known if each["kind"] not in CREATED_FIRST]
    applied, dry_run = tmp_path / "made.yaml", tmp_path / "tried.yaml"
    dry_run.write_text(yaml.safe_dump_all(rest))
    strict = "kubectl apply --server-side --validate=strict --filename"
    try:
        for each in first:
            applied.write_text(yaml.safe_dump(each))
            control_plane.shell(f"{strict} {applied}")
            # Wait as Pulumi does: webhooks reject children and jobs of a queue that is not open.
            opened = shlex.quote("--for=jsonpath={.status.state}=Open")
            control_plane.shell(f"kubectl wait {opened} queues --all --timeout=600s")
        answers = control_plane.shell(f"{strict} {dry_run} --dry-run=server").splitlines()
    finally:
        applied.write_text(yaml.safe_dump_all(reversed(first)))
        delete = f"kubectl delete --timeout=600s --ignore-not-found --filename {applied}"
        # The webhook rejects the deletion of a queue until it knows that the children are gone.
        control_plane.shell(f"timeout 120 bash -c 'until {delete}; do sleep 0.5; done'")
    assert len(answers) == len(rest) > 5


def test_only_operator_api_groups_are_omitted(provision: Provision) -> None:  # noqa: F811
    values, secrets = STACKS["every key 0"]
    plan = provision(values, tuple(secrets))
    groups = {group(plan.inputs(name)) for name, r in plan.resources.items() if is_object(r.type)}
    assert groups > OPERATOR_GROUPS


def test_rdma_pod_is_admitted_to_a_restricted_namespace(
    control_plane: Platform, tmp_path: Path
) -> None:
    restricted = namespace(TenancySettings(namespace="restricted", pod_security="restricted"))
    rdma = Rdma(resource="rdma/hca", count=8, interface="eth0", hca="mlx5")
    nodes = GpuNodes(resource="nvidia.com/gpu")
    described: dict[str, Any] = {"cpu": "1", "memory": "8Gi", "shm": "1Gi", "gpus": 8}
    described |= {"container": "main", "image": "train", "command": ["train"], "labels": {}}
    described |= {"service_account": "default", "gpu_nodes": nodes, "rdma": rdma}
    described["grace_seconds"] = 30
    template = pod_template(Pod(**described))
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": "rdma", "namespace": "restricted"}
    bound = {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    (container,) = pod["spec"]["containers"]
    added = {**container, "securityContext": container["securityContext"] | bound}
    adding = {**pod, "spec": {**pod["spec"], "containers": [added]}}
    space, file = tmp_path / "namespace.yaml", tmp_path / "pod.yaml"
    space.write_text(yaml.safe_dump(restricted))
    file.write_text(yaml.safe_dump(pod))
    control_plane.shell(f"kubectl create --filename {space}")
    control_plane.shell(
        "kubectl wait --for=create --namespace=restricted serviceaccount/default --timeout=600s"
    )
    try:
        assert 'violates PodSecurity "restricted' in control_plane.refusal(adding)
        control_plane.shell(f"kubectl create --dry-run=server --filename {file}")
    finally:
        control_plane.shell(f"kubectl delete --wait=false --filename {space}")


def is_object(kind: str) -> bool:
    return kind.startswith("kubernetes:") and "helm.sh" not in kind


def group(manifest: dict[str, Any]) -> str:
    return str(manifest["apiVersion"]).rpartition("/")[0]
