"""Ways to run pods or gain permissions through objects that create or change others."""

import json
from typing import Any

import yaml

from tests.policies.harness import Manifest
from tests.policies.ways.kinds import CONTAINER, SPEC, WEB
from tests.policies.ways.way import Way, way

BAD = CONTAINER | {"securityContext": {"privileged": True}}
POD = SPEC | {"containers": [BAD]}
TEMPLATE = {"template": {"spec": POD}}
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
BINDING: Manifest = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "a"},
    "roleRef": ROLE,
    "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "web"}],
}
UNNAMED = {key: BINDING[key] for key in ("metadata", "roleRef", "subjects")}
TEXT = yaml.safe_dump(BINDING)
METADATA = {"name": "a", "namespace": "web"}


def replacement(description: str, version: str, kind: str, rules: str, /, **fields: Any) -> Way:
    """Return an edit that replaces the Deployment of a web application."""
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, **fields}
    return way(description, WEB, rules, ("0", manifest))


def replacement_with_spec(
    description: str, version: str, kind: str, rules: str, /, **fields: Any
) -> Way:
    """Return an edit that replaces the Deployment with an object with these fields in `spec`."""
    return replacement(description, version, kind, rules, spec=fields)


PRIVILEGED = "not-privileged"
RBAC = "rbac-least-privilege"
TEKTON = "tekton.dev/v1"

WAYS = [
    replacement("a PodTemplate", "v1", "PodTemplate", PRIVILEGED, template={"spec": POD}),
    replacement(
        "a ControllerRevision of a Deployment",
        "apps/v1",
        "ControllerRevision",
        PRIVILEGED,
        revision=1,
        data={"spec": TEMPLATE},
    ),
    replacement(
        "ephemeral containers alone",
        "v1",
        "EphemeralContainers",
        "kind-known not-privileged",
        ephemeralContainers=[BAD],
    ),
    replacement_with_spec(
        "a Kueue Workload",
        "kueue.x-k8s.io/v1beta1",
        "Workload",
        PRIVILEGED,
        podSets=[{"name": "a", "count": 1, **TEMPLATE}],
    ),
    replacement_with_spec(
        "an EventSource",
        "sources.knative.dev/v1",
        "ContainerSource",
        PRIVILEGED,
        **TEMPLATE,
    ),
    replacement_with_spec(
        "a Job for each event",
        "sinks.knative.dev/v1alpha1",
        "JobSink",
        PRIVILEGED,
        job={"spec": TEMPLATE},
    ),
    replacement_with_spec(
        "a virtual machine instance type with GPUs",
        "instancetype.kubevirt.io/v1beta1",
        "VirtualMachineInstancetype",
        "kind-known",
        cpu={"guest": 8},
        memory={"guest": "64Gi"},
        gpus=[{"name": "gpu", "deviceName": "nvidia.com/GH100_H100"}],
    ),
    replacement_with_spec(
        "the template defaults of a workflow",
        "argoproj.io/v1alpha1",
        "Workflow",
        PRIVILEGED,
        entrypoint="a",
        templateDefaults={"container": BAD},
        templates=[{"name": "a", "container": CONTAINER}],
    ),
    replacement_with_spec(
        "a finally task in a pipeline",
        TEKTON,
        "Pipeline",
        PRIVILEGED,
        tasks=[],
        **{"finally": [{"name": "a", "taskSpec": {"steps": [BAD]}}]},
    ),
    replacement_with_spec(
        "the step template of a task",
        TEKTON,
        "Task",
        PRIVILEGED,
        stepTemplate={"securityContext": {"privileged": True}},
        steps=[CONTAINER],
    ),
    replacement_with_spec(
        "a shared step with a moving tag",
        "tekton.dev/v1beta1",
        "StepAction",
        "image-tag-fixed",
        image="a:latest",
        script="make",
    ),
    replacement_with_spec(
        "a custom task run",
        "tekton.dev/v1beta1",
        "CustomRun",
        "kind-known",
        customSpec={"apiVersion": "a.com/v1", "kind": "A", "spec": {"steps": [BAD]}},
    ),
    replacement_with_spec(
        "a host path in one task of a run",
        TEKTON,
        "PipelineRun",
        "no-host-path",
        pipelineRef={"name": "a"},
        taskRunSpecs=[
            {"podTemplate": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}},
        ],
    ),
    replacement_with_spec(
        "the host network in all tasks of a run",
        TEKTON,
        "PipelineRun",
        "no-host-namespaces",
        pipelineRef={"name": "a"},
        taskRunTemplate={"podTemplate": {"hostNetwork": True}},
    ),
    replacement_with_spec(
        "a role binding in a ResourceSet",
        "fluxcd.controlplane.io/v1",
        "ResourceSet",
        RBAC,
        resources=[BINDING],
    ),
    replacement_with_spec(
        "a role binding in the template text of a ResourceSet",
        "fluxcd.controlplane.io/v1",
        "ResourceSet",
        RBAC,
        resourcesTemplate=TEXT,
    ),
    replacement_with_spec(
        "a role binding in a Fleet Bundle",
        "fleet.cattle.io/v1alpha1",
        "Bundle",
        RBAC,
        resources=[{"name": "a.yaml", "content": TEXT}],
    ),
    replacement_with_spec(
        "a compressed Fleet Bundle",
        "fleet.cattle.io/v1alpha1",
        "Bundle",
        "kind-known",
        resources=[{"name": "a.yaml", "content": "H4sIAAAA", "encoding": "base64+gz"}],
    ),
    replacement_with_spec(
        "a role binding in a ResourceGraphDefinition",
        "kro.run/v1alpha1",
        "ResourceGraphDefinition",
        "kind-known",
        resources=[{"id": "a", "template": BINDING}],
    ),
    replacement(
        "a role binding in JSON with an escaped surrogate pair",
        "v1",
        "ConfigMap",
        RBAC,
        data={"a.json": json.dumps(BINDING | {"metadata": {"name": "a", "labels": {"a": "🚀"}}})},
    ),
    replacement_with_spec(
        "a role binding in an unknown kind", "a.com/v1", "A", "kind-known", items={"a": BINDING}
    ),
    replacement_with_spec(
        "a role binding as text in an unknown kind", "a.com/v1", "A", "kind-known", manifest=TEXT
    ),
    replacement(
        "a role binding in an OpenShift Template",
        "template.openshift.io/v1",
        "Template",
        "kind-known",
        objects=[BINDING],
    ),
    replacement(
        "a List in a List", "v1", "List", RBAC, items=[{"kind": "List", "items": [BINDING]}]
    ),
    replacement(
        "a list of role bindings without a kind",
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBindingList",
        RBAC,
        items=[UNNAMED],
    ),
    replacement_with_spec(
        "a Traefik route without TLS",
        "traefik.io/v1alpha1",
        "IngressRoute",
        "service-not-public",
        routes=[{"match": "Host(`a`)", "services": [{"name": "web", "port": 80}]}],
    ),
    replacement_with_spec(
        "a Contour route without TLS",
        "projectcontour.io/v1",
        "HTTPProxy",
        "service-not-public",
        virtualhost={"fqdn": "a.com"},
        routes=[{"services": [{"name": "web", "port": 80}]}],
    ),
]


def harmless(description: str, version: str, kind: str, /, **fields: Any) -> Way:
    """Return an edit that adds an object that no rule rejects."""
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, **fields}
    return way(description, WEB, "", ("1", manifest))


HARMLESS = [
    harmless(
        "a Flux ResourceSet",
        "fluxcd.controlplane.io/v1",
        "ResourceSet",
        spec={
            "inputs": [{"tenant": "a"}],
            "resources": [
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": "a", "namespace": "web"},
                    "automountServiceAccountToken": False,
                }
            ],
        },
    ),
    harmless(
        "a text that mentions kinds",
        "example.com/v1",
        "Note",
        spec={"text": "A kind of note about the metadata of a run"},
    ),
    harmless(
        "a role binding for readers in a List",
        "rbac.authorization.k8s.io/v1",
        "RoleBindingList",
        items=[
            {
                "metadata": {"name": "a", "namespace": "web"},
                "roleRef": {**ROLE, "name": "view"},
                "subjects": [{"kind": "Group", "name": "team", "apiGroup": "a"}],
            }
        ],
    ),
    harmless(
        "a Traefik route with TLS",
        "traefik.io/v1alpha1",
        "IngressRoute",
        spec={
            "entryPoints": ["websecure"],
            "routes": [{"match": "Host(`a`)", "services": [{"name": "web", "port": 80}]}],
            "tls": {"secretName": "a"},
        },
    ),
]
"""Harmless objects next to a web application."""
