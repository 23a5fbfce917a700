"""Moving a stack from one cluster to another."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.platform import Platform, empty_cluster

STACK = {
    "gpu": {"provider": "existing"},
    "volcano": {"install": False, "queues": {"moved": {}}},
    "tenancy": {"namespace": "moved"},
    "storage": {
        # No storage driver runs here.
        "volumes": {
            "moved": {
                "capacity": "1Gi",
                "access_modes": ["ReadWriteMany"],
                "storage_class": "moved",
                "local": {"path": "/moved", "nodes": {"type": ["kwok"]}},
            }
        },
        "claims": {"checkpoints": {"size": "1Gi", "storage_class": "moved", "volume": "moved"}},
    },
}


@pytest.fixture
def destination(tmp_path: Path) -> Iterator[Platform]:
    """A second cluster."""
    with empty_cluster(tmp_path) as platform:
        yield platform


@pytest.mark.slow
def test_a_stack_moves_to_another_cluster(
    cluster_without_policies: Platform, destination: Platform, tmp_path: Path
) -> None:
    kubeconfig = str(merge_kubeconfigs(cluster_without_policies, destination, tmp_path))
    file = cluster_without_policies.checkout / "Pulumi.moved.yaml"

    def configure(**cluster: Any) -> None:
        config = {**STACK, "cluster": {"kubeconfig": kubeconfig, **cluster}}
        named = {f"gpu-platform:{key}": value for key, value in config.items()}
        file.write_text(yaml.safe_dump({"config": named}))

    def pulumi(command: str) -> str:
        return cluster_without_policies.shell(f"pulumi {command} --stack moved")

    def preview() -> str:
        command = "python -m gitops preview --stack moved --out moved"
        return cluster_without_policies.shell(f"{command} && echo none || echo status=$?")

    configure(context="previous")
    cluster_without_policies.shell("pulumi stack init moved")
    try:
        pulumi("up --yes --skip-preview")
        configure(context="next")
        assert "status=3" in preview()
        configure(context="next", allow_move=True)
        pulumi("up --yes --skip-preview")
        configure(context="next")
        pulumi("preview --expect-no-changes")

        uid = destination.kubectl("get", "namespace", "kube-system")["metadata"]["uid"]
        recorded = json.loads(pulumi("stack output --json"))["cluster"]
        assert recorded == {"uid": uid, "identifier": uid}
        assert existing_objects(destination) == {"moved", "claims", "queue"}
        assert existing_objects(cluster_without_policies) == {"moved", "claims"}
    finally:
        pulumi("destroy --yes --skip-preview")
        cluster_without_policies.shell(
            "pulumi stack rm moved --yes && kubectl delete namespace moved"
        )


def merge_kubeconfigs(first: Platform, second: Platform, folder: Path) -> Path:
    """Return a kubeconfig with the contexts `previous` and `next`."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    for name, platform in {"previous": first, "next": second}.items():
        config = yaml.safe_load(platform.shell("kubectl config view --raw --minify --flatten"))
        for kind in ("clusters", "users"):
            merged.setdefault(kind, []).append({**config[kind][0], "name": name})
        context = {"name": name, "context": {"cluster": name, "user": name}}
        merged.setdefault("contexts", []).append(context)
    file = folder / "both.kubeconfig"
    file.write_text(yaml.safe_dump(merged))
    return file


def existing_objects(platform: Platform) -> set[str]:
    """Return the objects of the stack that exist in a cluster."""
    commands = {
        "moved": "kubectl get namespace moved",
        "claims": "kubectl get persistentvolumeclaim checkpoints --namespace moved",
        "queue": "kubectl get queues.scheduling.volcano.sh moved",
    }
    script = "; ".join(f"{{ {get} && echo {name}=yes; }} || true" for name, get in commands.items())
    answer = platform.shell(script)
    return {name for name in commands if f"{name}=yes" in answer}
