"""Ways to run a pod or gain rights through an object that makes or changes another one."""

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


def instead(what: str, version: str, kind: str, rules: str, /, **fields: Any) -> Way:
    """An object in place of the Deployment of a web application."""
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, **fields}
    return way(what, WEB, rules, ("0", manifest))


def spec(what: str, version: str, kind: str, rules: str, /, **fields: Any) -> Way:
    """An object with these fields below `spec`."""
    return instead(what, version, kind, rules, spec=fields)


PRIVILEGED = "not-privileged"
RBAC = "rbac-least-privilege"
TEKTON = "tekton.dev/v1"

WAYS = [
    instead("a template of pods", "v1", "PodTemplate", PRIVILEGED, template={"spec": POD}),
    instead(
        "a revision of a Deployment",
        "apps/v1",
        "ControllerRevision",
        PRIVILEGED,
        revision=1,
        data={"spec": TEMPLATE},
    ),
    instead(
        "ephemeral containers alone",
        "v1",
        "EphemeralContainers",
        "kind-known not-privileged",
        ephemeralContainers=[BAD],
    ),
    spec(
        "a workload of Kueue",
        "kueue.x-k8s.io/v1beta1",
        "Workload",
        PRIVILEGED,
        podSets=[{"name": "a", "count": 1, **TEMPLATE}],
    ),
    spec(
        "a source of events",
        "sources.knative.dev/v1",
        "ContainerSource",
        PRIVILEGED,
        **TEMPLATE,
    ),
    spec(
        "a job for each event",
        "sinks.knative.dev/v1alpha1",
        "JobSink",
        PRIVILEGED,
        job={"spec": TEMPLATE},
    ),
    spec(
        "a type of virtual machines with GPUs",
        "instancetype.kubevirt.io/v1beta1",
        "VirtualMachineInstancetype",
        "kind-known",
        cpu={"guest": 8},
        memory={"guest": "64Gi"},
        gpus=[{"name": "gpu", "deviceName": "nvidia.com/GH100_H100"}],
    ),
    spec(
        "the defaults of a workflow's templates",
        "argoproj.io/v1alpha1",
        "Workflow",
        PRIVILEGED,
        entrypoint="a",
        templateDefaults={"container": BAD},
        templates=[{"name": "a", "container": CONTAINER}],
    ),
    spec(
        "a last task of a pipeline",
        TEKTON,
        "Pipeline",
        PRIVILEGED,
        tasks=[],
        **{"finally": [{"name": "a", "taskSpec": {"steps": [BAD]}}]},
    ),
    spec(
        "the template of all steps",
        TEKTON,
        "Task",
        PRIVILEGED,
        stepTemplate={"securityContext": {"privileged": True}},
        steps=[CONTAINER],
    ),
    spec(
        "a shared step of a moving tag",
        "tekton.dev/v1beta1",
        "StepAction",
        "image-tag-fixed",
        image="a:latest",
        script="make",
    ),
    spec(
        "a run of a custom task",
        "tekton.dev/v1beta1",
        "CustomRun",
        "kind-known",
        customSpec={"apiVersion": "a.com/v1", "kind": "A", "spec": {"steps": [BAD]}},
    ),
    spec(
        "the node's files in one task of a run",
        TEKTON,
        "PipelineRun",
        "no-host-path",
        pipelineRef={"name": "a"},
        taskRunSpecs=[
            {"podTemplate": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}},
        ],
    ),
    spec(
        "the node's network in all tasks of a run",
        TEKTON,
        "PipelineRun",
        "no-host-namespaces",
        pipelineRef={"name": "a"},
        taskRunTemplate={"podTemplate": {"hostNetwork": True}},
    ),
    spec(
        "a binding in a ResourceSet",
        "fluxcd.controlplane.io/v1",
        "ResourceSet",
        RBAC,
        resources=[BINDING],
    ),
    spec(
        "a binding in the text of a ResourceSet",
        "fluxcd.controlplane.io/v1",
        "ResourceSet",
        RBAC,
        resourcesTemplate=TEXT,
    ),
    spec(
        "a binding in a bundle of Fleet",
        "fleet.cattle.io/v1alpha1",
        "Bundle",
        RBAC,
        resources=[{"name": "a.yaml", "content": TEXT}],
    ),
    spec(
        "a compressed bundle of Fleet",
        "fleet.cattle.io/v1alpha1",
        "Bundle",
        "kind-known",
        resources=[{"name": "a.yaml", "content": "H4sIAAAA", "encoding": "base64+gz"}],
    ),
    spec(
        "a binding in a graph of resources",
        "kro.run/v1alpha1",
        "ResourceGraphDefinition",
        "kind-known",
        resources=[{"id": "a", "template": BINDING}],
    ),
    instead(
        "a binding in JSON with an escaped surrogate pair",
        "v1",
        "ConfigMap",
        RBAC,
        data={"a.json": json.dumps(BINDING | {"metadata": {"name": "a", "labels": {"a": "🚀"}}})},
    ),
    spec("a binding in an unknown kind", "a.com/v1", "A", "kind-known", items={"a": BINDING}),
    spec("a binding as text in an unknown kind", "a.com/v1", "A", "kind-known", manifest=TEXT),
    instead(
        "a binding in a template of OpenShift",
        "template.openshift.io/v1",
        "Template",
        "kind-known",
        objects=[BINDING],
    ),
    instead("a list in a list", "v1", "List", RBAC, items=[{"kind": "List", "items": [BINDING]}]),
    instead(
        "a list of bindings that state no kind",
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBindingList",
        RBAC,
        items=[UNNAMED],
    ),
    spec(
        "a route of Traefik without TLS",
        "traefik.io/v1alpha1",
        "IngressRoute",
        "service-not-public",
        routes=[{"match": "Host(`a`)", "services": [{"name": "web", "port": 80}]}],
    ),
    spec(
        "a route of Contour without TLS",
        "projectcontour.io/v1",
        "HTTPProxy",
        "service-not-public",
        virtualhost={"fqdn": "a.com"},
        routes=[{"services": [{"name": "web", "port": 80}]}],
    ),
]


def harmless(what: str, version: str, kind: str, /, **fields: Any) -> Way:
    """An object in addition to the web application that no rule refuses."""
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, **fields}
    return way(what, WEB, "", ("1", manifest))


HARMLESS = [
    harmless(
        "a set of resources of Flux",
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
        "a text that speaks of kinds",
        "example.com/v1",
        "Note",
        spec={"text": "A kind of note about the metadata of a run"},
    ),
    harmless(
        "a binding of readers in a list",
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
        "a route of Traefik with TLS",
        "traefik.io/v1alpha1",
        "IngressRoute",
        spec={
            "entryPoints": ["websecure"],
            "routes": [{"match": "Host(`a`)", "services": [{"name": "web", "port": 80}]}],
            "tls": {"secretName": "a"},
        },
    ),
]
"""Objects next to a web application that run nothing."""
