import asyncio
from typing import Any
from unittest.mock import Mock

import pulumi
import pytest
from pulumi.runtime.mocks import MockResourceArgs, set_mocks

from infra.settings.storage import (
    ClaimSettings,
    StorageClassSettings,
    StorageSettings,
    VolumeSettings,
)
from infra.storage import Storage, StorageArgs, claim, storage_class, volume
from tests.infra.conftest import LOOP, Engine

CLAIM_REF = {"kind": "PersistentVolumeClaim", "namespace": "ml", "name": "checkpoints"}


@pytest.mark.parametrize(
    ("values", "provisioner"),
    [
        (
            {"kind": "cephfs", "parameters": {"clusterID": "a", "fsName": "b"}},
            "cephfs.csi.ceph.com",
        ),
        (
            {
                "kind": "cephfs",
                "provisioner": "rook-ceph.cephfs.csi.ceph.com",
                "parameters": {"clusterID": "a", "fsName": "b"},
            },
            "rook-ceph.cephfs.csi.ceph.com",
        ),
        ({"kind": "nfs", "parameters": {"server": "a", "share": "/b"}}, "nfs.csi.k8s.io"),
        ({"kind": "local"}, "kubernetes.io/no-provisioner"),
        ({"kind": "other", "provisioner": "ebs.csi.aws.com"}, "ebs.csi.aws.com"),
    ],
)
def test_storage_class_has_the_provisioner_of_its_kind(
    values: dict[str, Any], provisioner: str
) -> None:
    built = storage_class("fast", StorageClassSettings.model_validate(values))
    assert built["provisioner"] == provisioner
    assert built.get("parameters") == values.get("parameters")


def test_storage_class_retains_data_and_binds_immediately_by_default() -> None:
    built = storage_class("fast", StorageClassSettings(kind="local"))
    assert built["reclaimPolicy"] == "Retain"
    assert built["volumeBindingMode"] == "Immediate"


def test_directory_on_several_nodes_is_a_local_volume_with_affinity() -> None:
    settings = VolumeSettings.model_validate(
        {
            "capacity": "5Gi",
            "access_modes": ["ReadWriteMany"],
            "local": {"path": "/shared", "nodes": {"kubernetes.io/hostname": ["a", "b"]}},
        }
    )
    assert volume("shared", settings, CLAIM_REF)["spec"] == {
        "capacity": {"storage": "5Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": CLAIM_REF,
        "local": {"path": "/shared"},
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "In",
                                "values": ["a", "b"],
                            }
                        ]
                    }
                ]
            }
        },
    }


@pytest.mark.parametrize(
    ("source", "spec"),
    [
        ({"nfs": {"server": "nfs", "path": "/ml"}}, {"nfs": {"server": "nfs", "path": "/ml"}}),
        (
            {"csi": {"driver": "cephfs.csi.ceph.com", "handle": "v1"}},
            {"csi": {"driver": "cephfs.csi.ceph.com", "volumeHandle": "v1"}},
        ),
    ],
)
def test_existing_nfs_and_csi_volumes_are_referenced(
    source: dict[str, Any], spec: dict[str, Any]
) -> None:
    settings = VolumeSettings.model_validate(
        {"capacity": "5Gi", "access_modes": ["ReadWriteMany"], **source}
    )
    built = volume("old", settings, None)["spec"]
    assert spec.items() <= built.items()
    assert "claimRef" not in built


def test_claim_requests_either_a_class_or_a_volume() -> None:
    by_class = claim("a", "ml", ClaimSettings(size="1Gi", storage_class="fast"))["spec"]
    by_volume = claim("a", "ml", ClaimSettings(size="1Gi", volume="shared"))["spec"]
    assert by_class["storageClassName"] == "fast"
    assert "volumeName" not in by_class
    assert by_volume["volumeName"] == "shared"
    assert by_volume["storageClassName"] == ""


class DeletedClaims(Engine):
    """Mocked engine of a cluster whose claims were deleted while pods use them."""

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        identifier, state = super().new_resource(args)
        if args.typ.endswith(":PersistentVolumeClaim"):
            deleted = {"deletionTimestamp": "2026-11-30T06:02:19Z"}
            state = {**state, "metadata": {**state["metadata"], **deleted}}
        return identifier, state


@pytest.mark.parametrize(("engine", "warnings"), [(Engine, 0), (DeletedClaims, 1)])
def test_update_warns_about_a_claim_that_is_being_deleted(
    engine: type[Engine], warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.set_event_loop(LOOP)
    set_mocks(engine(), project="team", stack="test")
    warn = Mock()
    monkeypatch.setattr("pulumi.log.warn", warn)

    @pulumi.runtime.test
    def program() -> None:
        claims = {"checkpoints": ClaimSettings(size="1Gi", storage_class="fast")}
        Storage("storage", StorageArgs(storage=StorageSettings(claims=claims), namespace="ml"))

    program()
    messages = [call.args[0] for call in warn.call_args_list]
    assert len(messages) == warnings
    assert all("'checkpoints' is being deleted" in message for message in messages)
