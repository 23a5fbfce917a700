import asyncio
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime import rpc
from pulumi.runtime.mocks import set_mocks

from infra import cluster
from infra.cluster import Target, identity, in_cluster_kubeconfig, recorded_runs
from infra.outputs import ClusterOutput
from infra.settings.cluster import ClusterSettings
from tests.infra.conftest import LOOP, Engine, Provision
from tests.infra.examples import changed, good

RECORDED = {"cluster": {"uid": "u1", "identifier": "i1"}, "namespace": "ml"}


def test_new_stack_is_identified_by_the_uid_of_its_cluster() -> None:
    assert identity("u1", {}, "prod", allow_move=False) == {"uid": "u1", "identifier": "u1"}


def test_renamed_context_does_not_change_the_identity() -> None:
    found = identity("u1", RECORDED, "renamed", allow_move=False)
    assert found == {"uid": "u1", "identifier": "i1"}


def test_stack_from_an_earlier_release_keeps_its_identifier() -> None:
    # Earlier releases used the context's name; another identifier would replace everything.
    found = identity("u1", {"namespace": "ml"}, "prod", allow_move=False)
    assert found == {"uid": "u1", "identifier": "prod"}


def test_move_to_another_cluster_is_rejected() -> None:
    with pytest.raises(pulumi.RunError, match=r"would move to another cluster.*u1.*u2.*allow_move"):
        identity("u2", RECORDED, "prod", allow_move=False)


def test_allowed_move_changes_the_identity() -> None:
    found = identity("u2", RECORDED, "prod", allow_move=True)
    assert found == {"uid": "u2", "identifier": "u2"}


def test_recorded_runs_apply_only_to_the_same_cluster_and_namespace() -> None:
    cluster: ClusterOutput = {"uid": "u1", "identifier": "i1"}
    # A failed update writes the output `runs`, but not `startedRuns`.
    after_failed_update = {**RECORDED, "runs": {"digits": {"name": "digits-0a1b2c3d"}}}
    assert recorded_runs(after_failed_update, cluster, "ml") == []
    recorded = {**after_failed_update, "startedRuns": ["digits-0a1b2c3d"]}
    assert recorded_runs(recorded, cluster, "ml") == ["digits-0a1b2c3d"]
    assert recorded_runs(recorded, {"uid": "u2", "identifier": "u2"}, "ml") == []
    assert recorded_runs(recorded, cluster, "ml2") == []
    assert recorded_runs(RECORDED, cluster, "ml") == []
    assert recorded_runs({}, cluster, "ml") == []


@pytest.mark.parametrize(("namespace", "runs"), [("ml", ["digits-0a1b2c3d"]), ("ml2", [])])
def test_target_reads_recorded_runs_only_for_the_same_namespace(
    monkeypatch: pytest.MonkeyPatch, namespace: str, runs: list[str]
) -> None:
    asyncio.set_event_loop(LOOP)
    set_mocks(Engine(), project="gpu-platform", stack="test")
    outputs = {
        "cluster": {"uid": Engine.uid, "identifier": "i1"},
        "namespace": "ml",
        "startedRuns": ["digits-0a1b2c3d"],
    }
    monkeypatch.setattr(cluster, "_recorded_outputs", lambda: pulumi.Output.from_input(outputs))
    found: list[object] = []

    async def program() -> None:
        target = Target.of(ClusterSettings(context="prod"), namespace)
        found.append(await target.runs.future())

    pulumi.runtime.test(program)()
    assert found == [runs]


def test_preview_recognizes_the_cluster_if_another_output_is_unknown() -> None:
    """An update with `--target` stores the outputs of resources that it skips as unknown."""
    asyncio.set_event_loop(LOOP)
    recorded = {"cluster": {"uid": Engine.uid, "identifier": "i1"}, "url": rpc.UNKNOWN}
    set_mocks(Engine(recorded), project="gpu-platform", stack="test", preview=True)
    found: list[object] = []

    async def program() -> None:
        found.append(await cluster._recorded_outputs().future())

    pulumi.runtime.test(program)()
    assert found == [{"cluster": {"uid": Engine.uid, "identifier": "i1"}}]


def test_the_provider_updates_config_maps_and_secrets_in_place(provision: Provision) -> None:
    """By default, the provider deletes them and creates them again."""
    inputs = provision(good()).inputs("cluster")
    assert inputs["enableConfigMapMutable"] == "true"
    assert inputs["enableSecretMutable"] == "true"


def test_the_provider_is_identified_by_the_cluster(provision: Provision) -> None:
    plan = provision(good())
    assert plan.inputs("cluster")["clusterIdentifier"] == "0a1b2c3d"
    assert plan.inputs("cluster-identity")["clusterIdentifier"] == "identity"


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "10.96.0.1:443"), ("fd00::1", "[fd00::1]:443")]
)
def test_in_cluster_kubeconfig_uses_the_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, server: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "token").write_text("secret")
    text = in_cluster_kubeconfig(tmp_path)
    config: dict[str, Any] = yaml.safe_load(text)
    assert config["current-context"] == "in-cluster"
    assert config["clusters"][0]["cluster"]["server"] == f"https://{server}"
    assert config["users"][0]["user"] == {"tokenFile": str(tmp_path / "token")}
    assert "secret" not in text


def test_in_cluster_kubeconfig_requires_a_pod(tmp_path: Path) -> None:
    with pytest.raises(
        pulumi.RunError, match=r"cluster\.context is 'in-cluster', but this process is not"
    ):
        in_cluster_kubeconfig(tmp_path)


@pytest.mark.parametrize(
    ("render_to", "directory"), [("~/rendered", "/home/ann/rendered"), ("rendered/", "rendered/")]
)
def test_home_directory_in_render_to_is_expanded(
    provision: Provision, monkeypatch: pytest.MonkeyPatch, render_to: str, directory: str
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    plan = provision({**good(), "cluster": {"render_to": render_to}})
    assert plan.inputs("cluster")["renderYamlToDirectory"] == directory


@pytest.mark.parametrize("path", ["/etc/missing/kubeconfig", "~nobody-here/kubeconfig"])
def test_missing_kubeconfig_is_reported_with_its_key(provision: Provision, path: str) -> None:
    values = changed("cluster.kubeconfig", path)
    message = rf"cluster\.kubeconfig is '{path}', but this file does not exist"
    with pytest.raises(pulumi.RunError, match=message):
        provision(values)


def test_in_cluster_context_requires_a_service_account(provision: Provision) -> None:
    with pytest.raises(pulumi.RunError, match="not in a pod with a service account"):
        provision(changed("cluster.context", "in-cluster"))
