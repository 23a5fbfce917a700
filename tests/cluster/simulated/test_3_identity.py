"""A stack recognizes its cluster, regardless of the context's name in the kubeconfig."""

import json
import os
import subprocess
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gitops.errors import BLOCKED, CHANGES, UNCHANGED
from kube.names import STACK_ANNOTATION
from tests.cluster.platform import ROOT, Platform

SETTING = "gpu-platform:cluster"


def preview(cluster: Platform, **config: Any) -> tuple[int, str]:
    """Return status and output of a preview with other settings of the cluster."""
    cluster.edit(lambda settings: settings[SETTING].update(config))
    command = f"python -m gitops preview --stack {cluster.stack} --out preview"
    words = f"status=0; {command} || status=$?; echo status=$status; cat preview/comment.md"
    output = cluster.shell(words)
    return int(output.partition("status=")[2].split()[0]), output


@pytest.fixture
def configuration(cluster: Platform) -> Any:
    """The stack's configuration, restored afterwards."""
    before = cluster.stack_file.read_text()
    yield
    cluster.stack_file.write_text(before)


@pytest.fixture
def updated_configuration(cluster: Platform) -> Any:
    """The stack's configuration, restored and applied afterwards.

    Until then, the stack's state refers to files of the pod.
    """
    before = cluster.stack_file.read_text()
    yield
    cluster.stack_file.write_text(before)
    cluster.make("up")


def test_renamed_context_does_not_replace_any_object(cluster: Platform, configuration: Any) -> None:
    copy = cluster.state / "renamed.kubeconfig"
    context = f"gpu-platform-{cluster.nodes}"
    cluster.shell(
        f"cp $KUBECONFIG {copy} && "
        f"kubectl --kubeconfig {copy} config rename-context {context} renamed"
    )
    status, _ = preview(cluster, context="renamed", kubeconfig=str(copy))
    report = json.loads((cluster.checkout / "preview" / "report.json").read_text())
    assert status in (UNCHANGED, CHANGES)
    assert report["counts"]["replace"] == report["counts"]["delete"] == 0
    assert report["counts"]["create"] == 0


@pytest.mark.parametrize("shared", ["queues", "namespace"])
def test_a_second_stack_cannot_manage_objects_of_the_first(cluster: Platform, shared: str) -> None:
    settings = yaml.safe_load(cluster.stack_file.read_text())["config"]
    queues = settings["gpu-platform:volcano"]["queues"]
    namespace = settings["gpu-platform:tenancy"]["namespace"]
    second = {
        SETTING: settings[SETTING],
        "gpu-platform:gpu": settings["gpu-platform:gpu"],
        "gpu-platform:volcano": {
            "install": False,
            "queues": queues if shared == "queues" else {"second": {}},
        },
        "gpu-platform:tenancy": {"namespace": namespace if shared == "namespace" else "second"},
    }
    file = cluster.checkout / "Pulumi.second.yaml"
    file.write_text(yaml.safe_dump({"config": second}))
    cluster.shell("pulumi stack init second")
    try:
        output = cluster.shell("! pulumi up --yes --skip-preview --stack second 2>&1")
        assert f".metadata.annotations.{STACK_ANNOTATION}" in output
    finally:
        cluster.shell(
            "pulumi destroy --yes --skip-preview --stack second && "
            "pulumi stack rm second --yes && kubectl delete namespace second --ignore-not-found"
        )
    for queue in queues:
        assert cluster.kubectl("get", "queues.scheduling.volcano.sh", queue)
    assert cluster.kubectl("get", "serviceaccount", "training", "--namespace", namespace)


IN_A_POD = """
mount -t tmpfs none /run
account=/run/secrets/kubernetes.io/serviceaccount
mkdir -p $account
printf %s "$TOKEN" > $account/token
printf %s "$CA" | base64 -d > $account/ca.crt
unset KUBECONFIG
pulumi config set gpu-platform:cluster "$CLUSTER" --stack {stack}
pulumi up --yes --skip-preview --stack {stack}
exec python -m gitops preview --stack {stack} --out preview
"""
OPERATOR = ROOT / "gitops" / "operator" / "stacks.yaml"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a service account's files requires root")
def test_pod_updates_its_own_cluster_with_its_service_account(
    cluster: Platform, updated_configuration: Any
) -> None:
    cluster.shell(
        "kubectl create serviceaccount pulumi -n default && "
        "kubectl create clusterrolebinding pulumi --clusterrole=cluster-admin "
        "--serviceaccount=default:pulumi"
    )
    config = yaml.safe_load(cluster.shell("kubectl config view --raw --minify --flatten"))
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    # The Pulumi Kubernetes Operator writes this setting into the configuration of each stack.
    (setting,) = {
        each["spec"]["config"][SETTING] for each in yaml.safe_load_all(OPERATOR.read_text())
    }

    def label(settings: dict[str, Any]) -> None:
        settings["gpu-platform:volcano"]["queues"]["of-the-pod"] = {}

    cluster.edit(label)
    variables = {
        **cluster.shell_environment,
        "TOKEN": cluster.shell("kubectl create token pulumi -n default").strip(),
        "CLUSTER": setting,
        "CA": config["clusters"][0]["cluster"]["certificate-authority-data"],
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }
    script = IN_A_POD.format(stack=cluster.stack)
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-ec", script],
        cwd=cluster.checkout,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == UNCHANGED, done.stderr + done.stdout
    assert cluster.kubectl("get", "queues.scheduling.volcano.sh", "of-the-pod")["status"]["state"]
    report = json.loads((cluster.checkout / "preview" / "report.json").read_text())
    assert [report["counts"][name] for name in ("create", "replace", "delete")] == [0, 0, 0]


def test_update_of_a_stack_from_another_cluster_is_rejected(
    cluster: Platform, configuration: Any
) -> None:
    stack = f"--stack {cluster.stack}"
    original, copy = cluster.state / "original.json", cluster.state / "moved.json"
    cluster.shell(f"pulumi stack export {stack} --file {original}")
    state = json.loads(original.read_text())
    (root,) = (r for r in state["deployment"]["resources"] if r["type"] == "pulumi:pulumi:Stack")
    root["outputs"]["cluster"]["uid"] = "of-another-cluster"
    copy.write_text(json.dumps(state))
    cluster.shell(f"pulumi stack import {stack} --file {copy}")
    try:
        status, output = preview(cluster)
        assert status == BLOCKED
        assert "would move to another cluster" in output
    finally:
        cluster.shell(f"pulumi stack import {stack} --file {original}")
