"""The rule about objects that Helm, Argo CD, Flux and mutating policies change unchecked."""

from typing import Any

import pytest

from policies.catalogue import RULES_BY_NAME
from policies.resources import Resource
from policies.values import UNKNOWN
from policies.views import View
from tests.policies.harness import Manifest, evaluate_rule

RULE = RULES_BY_NAME["helm-release-judged"]
RELEASE = {
    "name": "batch",
    "chart": "volcano",
    "version": "1.15.1",
    "namespace": "volcano-system",
    "repositoryOpts": {"repo": "https://charts.example.com"},
    "values": {"custom": {"containers": [{"securityContext": {"privileged": True}}]}},
}
HOST = {"hostNetwork": True, "containers": [{"name": "a", "image": "registry.example.com/a:1"}]}
VALUES = {"image": {"repository": "registry.example.com/a", "tag": "1"}}


def violation_texts(pulumi_type: str, properties: Any) -> list[str]:
    view = View(Resource(pulumi_type, properties, name="volcano"))
    return [violation.text for violation in RULE.violations(view, RULE.configure({}))]


def test_release_is_reported_with_the_command_that_renders_it() -> None:
    (text,) = violation_texts("kubernetes:helm.sh/v3:Release", RELEASE)
    assert 'chart: found "volcano", a chart whose objects no rule has checked' in text
    command = "helm template batch volcano --repo https://charts.example.com --version 1.15.1"
    command += " --namespace volcano-system"
    assert f"{command} --values FILE | python -m policies.check -" in text


@pytest.mark.parametrize("properties", [{}, {"chart": UNKNOWN}, {"chart": 1}, {"chart": None}])
def test_every_release_is_reported(properties: Any) -> None:
    (text,) = violation_texts("kubernetes:helm.sh/v3:Release", properties)
    assert "no rule has checked" in text


@pytest.mark.parametrize(
    ("version", "kind"),
    [("helm.cattle.io/v1", "HelmChart"), ("helm.toolkit.fluxcd.io/v2beta1", "helmrelease")],
)
def test_releases_installed_by_controllers_in_the_cluster_are_reported(
    version: str, kind: str
) -> None:
    assert violation_texts(f"kubernetes:{version}:{kind}", {"apiVersion": version, "kind": kind})


@pytest.mark.parametrize(
    ("spec", "namespace"), [({}, "flux-system"), ({"targetNamespace": "gpu"}, "gpu")]
)
def test_command_renders_the_chart_for_the_namespace_of_the_release(
    spec: Manifest, namespace: str
) -> None:
    metadata = {"name": "a", "namespace": "flux-system"}
    api = "helm.toolkit.fluxcd.io/v2"
    chart = {"chart": {"spec": {"chart": "volcano"}}}
    release = {"apiVersion": api, "kind": "HelmRelease", "metadata": metadata}
    (message,) = evaluate_rule("helm-release-judged", {**release, "spec": {**chart, **spec}})
    assert f"helm template a volcano --namespace {namespace} --values FILE" in message


@pytest.mark.parametrize(
    "pulumi_type", ["kubernetes:helm.sh/v4:Chart", "kubernetes:helm.sh/v3:Chart", "aws:s3:Release"]
)
def test_resources_that_register_their_manifests_are_not_reported(pulumi_type: str) -> None:
    assert violation_texts(pulumi_type, RELEASE) == []


@pytest.mark.parametrize(
    ("version", "kind", "reason"),
    [
        ("argoproj.io/v1alpha1", "ApplicationSet", "manifests from a repository"),
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "manifests from a repository"),
        ("configsync.gke.io/v1beta1", "RootSync", "manifests from a repository"),
        ("operators.coreos.com/v1alpha1", "Subscription", "installs an operator"),
        ("olm.operatorframework.io/v1", "ClusterExtension", "installs an operator"),
        ("kappctrl.k14s.io/v1alpha1", "App", "manifests from a repository"),
        ("packaging.carvel.dev/v1alpha1", "PackageInstall", "deploys a package"),
        ("fluxcd.controlplane.io/v1", "FluxInstance", "manifests from a repository"),
        ("fleet.cattle.io/v1alpha1", "HelmOp", "deploys a chart"),
        ("addons.cluster.x-k8s.io/v1alpha1", "HelmChartProxy", "deploys a chart"),
        ("infra.contrib.fluxcd.io/v1alpha2", "Terraform", "runs a Terraform program"),
        ("kaito.sh/v1beta1", "RAGEngine", "runs a model"),
        ("kubeai.org/v1", "Model", "runs model servers"),
        ("pulumi.com/v1", "Stack", "runs a Pulumi program"),
        ("pulumi.com/v1", "Program", "is a Pulumi program"),
        ("mutations.gatekeeper.sh/v1", "Assign", "changes objects"),
        ("policies.kyverno.io/v1", "MutatingPolicy", "changes objects"),
        ("admissionregistration.k8s.io/v1beta1", "MutatingAdmissionPolicy", "changes objects"),
    ],
)
def test_kinds_that_create_or_change_unchecked_objects_are_reported(
    version: str, kind: str, reason: str
) -> None:
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "a"}}
    (message,) = evaluate_rule("helm-release-judged", manifest)
    assert reason in message


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("argoproj.io/v1alpha1", "AppProject"),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
        ("policies.kyverno.io/v1", "ValidatingPolicy"),
    ],
)
def test_kinds_that_only_restrict_objects_are_not_reported(version: str, kind: str) -> None:
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "a"}}
    assert evaluate_rule("helm-release-judged", manifest) == []


def test_argo_cd_applications_are_reported_unless_they_are_checked_elsewhere() -> None:
    application = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": "web", "namespace": "argocd"},
        "spec": {"source": {"repoURL": "https://example.com/web", "path": "deploy"}},
    }
    (message,) = evaluate_rule("helm-release-judged", application)
    assert "it deploys manifests from a repository" in message
    named = {"checkedElsewhere": ["argocd/Application.argoproj.io/*"]}
    assert evaluate_rule("helm-release-judged", application, config=named) == []


@pytest.mark.parametrize(
    ("kind", "spec", "reported"),
    [
        ("TaskRun", {"taskRef": {"resolver": "http", "params": []}}, True),
        ("TaskRun", {"taskRef": {"name": "a", "bundle": "registry.example.com/a:1.0"}}, True),
        ("PipelineRun", {"pipelineRef": {"resolver": "git", "params": []}}, True),
        ("PipelineRun", {"pipelineSpec": {"tasks": [{"taskRef": {"resolver": "hub"}}]}}, True),
        ("Pipeline", {"finally": [{"taskRef": {"resolver": "hub"}}]}, True),
        ("TaskRun", {"taskRef": {"resolver": "cluster", "params": []}}, False),
        ("PipelineRun", {"pipelineRef": {"name": "a"}}, False),
        ("Task", {"steps": [{"ref": {"resolver": "git", "params": []}}]}, True),
        ("TaskRun", {"taskSpec": {"steps": [{"ref": {"resolver": "hub"}}]}}, True),
        (
            "Pipeline",
            {"tasks": [{"taskSpec": {"steps": [{"ref": {"resolver": "hub"}}]}}]},
            True,
        ),
        ("Task", {"steps": [{"ref": {"name": "a"}}]}, False),
    ],
)
def test_tasks_from_outside_the_cluster_are_reported(
    kind: str, spec: dict[str, Any], reported: bool
) -> None:
    manifest = {"apiVersion": "tekton.dev/v1", "kind": kind, "spec": spec}
    assert bool(violation_texts(f"kubernetes:tekton.dev/v1:{kind}", manifest)) is reported


def test_charts_of_fleet_bundles_are_reported() -> None:
    bundle = {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "Bundle",
        "metadata": {"name": "web", "namespace": "fleet-default"},
        "spec": {"helm": {"chart": "web", "values": VALUES}},
    }
    (message,) = evaluate_rule("helm-release-judged", bundle)
    assert "it runs definitions from outside the cluster" in message
    assert evaluate_rule("kind-known", bundle) == []


@pytest.mark.parametrize(
    ("properties", "reporting"),
    [
        ({"url": "https://example.com", "values": VALUES}, "helm-release-judged"),
        ({"objects": [{"apiVersion": "v1", "kind": "Pod", "spec": HOST}]}, "no-host-namespaces"),
        ({"image": "registry.example.com/a:1"}, "kind-known"),
    ],
)
def test_components_of_kubevela_are_checked(properties: dict[str, Any], reporting: str) -> None:
    application = {
        "apiVersion": "core.oam.dev/v1beta1",
        "kind": "Application",
        "metadata": {"name": "web", "namespace": "web"},
        "spec": {"components": [{"name": "web", "properties": properties}]},
    }
    rules = ("helm-release-judged", "no-host-namespaces", "kind-known")
    assert [rule for rule in rules if evaluate_rule(rule, application)] == [reporting]
