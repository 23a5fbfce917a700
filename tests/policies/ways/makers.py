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
CHECKPOINTS = {
    "metadata": {"name": "checkpoints"},
    "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "a"},
}


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
    *(
        replacement_with_spec(
            f"a {source} as a workspace of a TaskRun",
            TEKTON,
            "TaskRun",
            "kind-known",
            taskSpec={"steps": [CONTAINER]},
            workspaces=[{"name": "a", **fields}],
        )
        for source, fields in (
            ("directory of the node", {"csi": {"driver": "hostpath.csi.k8s.io"}}),
            ("token", {"projected": {"sources": [{"serviceAccountToken": {"path": "a"}}]}}),
        )
    ),
    *(
        replacement_with_spec(
            f"the package of a Crossplane {kind} has no fixed version",
            "pkg.crossplane.io/v1",
            kind,
            "image-tag-fixed",
            package="ghcr.io/team/package:latest",
        )
        for kind in ("Provider", "Function", "Configuration")
    ),
    replacement_with_spec(
        "a moving tag of the Job that installs a HelmChart",
        "helm.cattle.io/v1",
        "HelmChart",
        "image-tag-fixed",
        chart="a",
        jobImage="ghcr.io/team/helm:latest",
    ),
    replacement_with_spec(
        "a text manifest in a kapp-controller App",
        "kappctrl.k14s.io/v1alpha1",
        "App",
        RBAC,
        fetch=[{"inline": {"paths": {"a.yaml": TEXT}}}],
    ),
    replacement_with_spec(
        "the host path of an operator that OLM installs",
        "operators.coreos.com/v1alpha1",
        "Subscription",
        "no-host-path",
        name="a",
        config={"volumes": [{"name": "a", "hostPath": {"path": "/"}}]},
    ),
    *(
        replacement_with_spec(
            f"the {field} of a Karmada policy",
            "policy.karmada.io/v1alpha1",
            "OverridePolicy",
            "kind-known",
            overrideRules=[{"overriders": {field: [value]}}],
        )
        for field, value in (
            ("plaintext", {"path": "/spec/hostNetwork", "operator": "add", "value": True}),
            ("imageOverrider", {"component": "Registry", "operator": "replace", "value": "a.com"}),
        )
    ),
    replacement_with_spec(
        "an image in an object of Run:ai",
        "run.ai/v2alpha1",
        "TrainingWorkload",
        "kind-known",
        image={"value": "ghcr.io/team/train:1.2"},
    ),
    replacement(
        "a KAITO preset",
        "kaito.sh/v1beta1",
        "Workspace",
        "kind-known",
        resource={"instanceType": "Standard_NC96ads_A100_v4", "count": 16},
        inference={"preset": {"name": "llama-3.1-8b-instruct"}},
    ),
    replacement_with_spec(
        "a set of KAITO presets",
        "kaito.sh/v1beta1",
        "InferenceSet",
        "kind-known",
        replicas=16,
        template={
            "resource": {"instanceType": "Standard_NC96ads_A100_v4"},
            "inference": {"preset": {"name": "llama-3.1-8b-instruct"}},
        },
    ),
    *(
        way(
            f"a {kind} from another bucket",
            WEB,
            "image-registry-allowed",
            ("0", {"apiVersion": "serving.kserve.io/v1alpha1", "kind": kind, **fields}),
            image_registry_allowed={"allowedRegistries": ["ghcr.io", "s3://team"]},
        )
        for kind, fields in (
            ("TrainedModel", {"metadata": METADATA, "spec": {"model": {"storageUri": "s3://a/b"}}}),
            ("LocalModelCache", {"metadata": {"name": "a"}, "spec": {"sourceModelUri": "s3://a"}}),
        )
    ),
    *(
        replacement_with_spec(
            f"checkpoints in claims that {owner} deletes",
            version,
            kind,
            "checkpoints-kept",
            **fields,
        )
        for owner, version, kind, fields in (
            (
                "a Workflow",
                "argoproj.io/v1alpha1",
                "Workflow",
                {
                    "templates": [{"name": "a", "container": CONTAINER}],
                    "volumeClaimTemplates": [CHECKPOINTS],
                },
            ),
            (
                "a TaskRun",
                TEKTON,
                "TaskRun",
                {
                    "taskSpec": {"steps": [CONTAINER]},
                    "workspaces": [{"name": "checkpoints", "volumeClaimTemplate": CHECKPOINTS}],
                },
            ),
            (
                "a LeaderWorkerSet",
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                {
                    "leaderWorkerTemplate": {
                        "workerTemplate": {"spec": SPEC},
                        "volumeClaimTemplates": [CHECKPOINTS],
                    }
                },
            ),
            (
                "a JobSet",
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                {
                    "replicatedJobs": [
                        {"name": "a", "template": {"spec": {"template": {"spec": SPEC}}}}
                    ],
                    "volumeClaimPolicies": [{"templates": [CHECKPOINTS]}],
                },
            ),
        )
    ),
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
