"""Kinds whose pods come from embedded objects, from an external source or from an operator."""

from __future__ import annotations

from typing import Final

from kube.workloads.kubernetes import NOT_RUN
from kube.workloads.record import Pods, WorkloadKind

_CHART: Final = "it deploys a chart"
_REPOSITORY: Final = "it deploys manifests from a repository"
_OPERATOR: Final = "it installs an operator"
_PACKAGE: Final = "it deploys a package"

EMBEDDING_KINDS: Final = [
    WorkloadKind(
        group="workload.codeflare.dev",
        kind="AppWrapper",
        objects=("spec.components.*.template",),
        shares_namespace=True,
    ),
    WorkloadKind(
        group="work.open-cluster-management.io",
        kind="ManifestWork",
        objects=("spec.workload.manifests.*",),
    ),
    WorkloadKind(
        group="work.open-cluster-management.io",
        kind="ManifestWorkReplicaSet",
        objects=("spec.manifestWorkTemplate.workload.manifests.*",),
    ),
    WorkloadKind(group="work.karmada.io", kind="Work", objects=("spec.workload.manifests.*",)),
    WorkloadKind(
        group="kubernetes.crossplane.io", kind="Object", objects=("spec.forProvider.manifest",)
    ),
    WorkloadKind(
        group="kubernetes.m.crossplane.io", kind="Object", objects=("spec.forProvider.manifest",)
    ),
    WorkloadKind(
        group="fluxcd.controlplane.io",
        kind="ResourceSet",
        objects=("spec.resources.*",),
        texts=("spec.resourcesTemplate",),
    ),
    # KubeVela. A component whose type is helm or kustomize deploys the manifests at a URL.
    WorkloadKind(
        group="core.oam.dev",
        kind="Application",
        objects=("spec.components.*.properties.objects.*",),
        remote=("spec.components.*.properties.url",),
        shares_namespace=True,
    ),
    WorkloadKind(
        group="fleet.cattle.io",
        kind="Bundle",
        texts=("spec.resources.*.content",),
        remote=("spec.helm.chart",),
        opaque=("spec.resources.*.encoding",),
    ),
]

EXTERNAL_SOURCE_KINDS: Final = [
    WorkloadKind(group="helm.toolkit.fluxcd.io", kind="HelmRelease", unseen=_CHART),
    WorkloadKind(
        group="helm.cattle.io",
        kind="HelmChart",
        pods=(Pods(at="spec", images=("jobImage",), count=NOT_RUN, partial=True),),
        unseen=_CHART,
    ),
    WorkloadKind(
        group="helm.cattle.io", kind="HelmChartConfig", unseen="it sets the values of a chart"
    ),
    WorkloadKind(group="helm.crossplane.io", kind="Release", unseen=_CHART),
    WorkloadKind(group="kustomize.toolkit.fluxcd.io", kind="Kustomization", unseen=_REPOSITORY),
    WorkloadKind(group="argoproj.io", kind="Application", unseen=_REPOSITORY),
    WorkloadKind(group="argoproj.io", kind="ApplicationSet", unseen=_REPOSITORY),
    WorkloadKind(group="fleet.cattle.io", kind="GitRepo", unseen=_REPOSITORY),
    WorkloadKind(group="fleet.cattle.io", kind="HelmOp", unseen=_CHART),
    WorkloadKind(group="addons.cluster.x-k8s.io", kind="HelmChartProxy", unseen=_CHART),
    WorkloadKind(group="fluxcd.controlplane.io", kind="FluxInstance", unseen=_REPOSITORY),
    WorkloadKind(
        group="kappctrl.k14s.io",
        kind="App",
        texts=("spec.fetch.*.inline.paths.*",),
        unseen=_REPOSITORY,
    ),
    WorkloadKind(group="packaging.carvel.dev", kind="PackageInstall", unseen=_PACKAGE),
    WorkloadKind(
        group="operators.coreos.com",
        kind="Subscription",
        pods=(Pods(at="spec.config", count=NOT_RUN, partial=True),),
        unseen=_OPERATOR,
    ),
    WorkloadKind(
        group="olm.operatorframework.io",
        kind="ClusterExtension",
        unseen=_OPERATOR,
        namespaced=False,
    ),
    WorkloadKind(
        group="infra.contrib.fluxcd.io",
        kind="Terraform",
        pods=(
            Pods(at="spec.runnerPodTemplate.spec", images=("image",), count=NOT_RUN, partial=True),
        ),
        unseen="it runs a Terraform program",
    ),
    # For a preset, KAITO chooses the image, adds GPU nodes and sets the pod's fields.
    WorkloadKind(
        group="kaito.sh",
        kind="Workspace",
        pods=(Pods(at="inference.template.spec", count=NOT_RUN, partial=True),),
        opaque=("inference", "tuning"),
    ),
    WorkloadKind(
        group="kaito.sh",
        kind="InferenceSet",
        pods=(Pods(at="spec.template.inference.template.spec", count=NOT_RUN, partial=True),),
        opaque=("spec.template.inference",),
    ),
    WorkloadKind(
        group="kaito.sh", kind="RAGEngine", unseen="it runs a model, for which it adds GPU nodes"
    ),
    WorkloadKind(
        group="kubeai.org", kind="Model", unseen="it runs model servers with a resource profile"
    ),
    WorkloadKind(group="configsync.gke.io", kind="RootSync", unseen=_REPOSITORY),
    WorkloadKind(group="configsync.gke.io", kind="RepoSync", unseen=_REPOSITORY),
    WorkloadKind(group="pulumi.com", kind="Stack", unseen="it runs a Pulumi program"),
    WorkloadKind(group="pulumi.com", kind="Program", unseen="it is a Pulumi program"),
    WorkloadKind(group="apps.open-cluster-management.io", kind="Subscription", unseen=_REPOSITORY),
]

_TRIGGER_TEMPLATES: Final = tuple(
    f"spec.triggers.*.template.{name}" for name in ("k8s", "argoWorkflow")
)

# Argo Events: the pods of sensors and event sources, and the objects that triggers create.
_EVENT_PODS: Final = tuple(
    Pods(
        at="spec.template",
        containers=containers,
        metadata="spec.template.metadata",
        partial=True,
        additional=not containers,
    )
    # The first variant applies if the template sets `container`, the second one if it does not.
    for containers in (("container",), ())
)
EVENTS: Final = [
    WorkloadKind(
        group="argoproj.io",
        kind="Sensor",
        pods=_EVENT_PODS,
        objects=tuple(
            f"{at}.source.{field}" for at in _TRIGGER_TEMPLATES for field in ("resource", "inline")
        ),
        shares_namespace=True,
        opaque=tuple(
            f"{at}.source.{field}"
            for at in _TRIGGER_TEMPLATES
            for field in ("url", "git", "configmap", "s3", "file")
        ),
        destinations=(
            "spec.triggers.*.parameters.*.dest",
            *(f"{at}.parameters.*.dest" for at in _TRIGGER_TEMPLATES),
        ),
    ),
    WorkloadKind(group="argoproj.io", kind="EventSource", pods=_EVENT_PODS),
]

# The operator adds the main container. `spec.containers` lists only additional containers.
MONITORING: Final = [
    WorkloadKind(
        group="monitoring.coreos.com",
        kind=kind,
        pods=(Pods(at="spec", images=("", "thanos"), metadata="spec.podMetadata", partial=True),),
    )
    for kind in ("Prometheus", "PrometheusAgent", "Alertmanager", "ThanosRuler")
]

# Karmada applies these changes to the objects that the policy selects.
OVERRIDES: Final = [
    WorkloadKind(
        group="policy.karmada.io",
        kind=kind,
        opaque=tuple(
            f"{at}.{field}"
            for at in ("spec.overrideRules.*.overriders", "spec.overriders")
            for field in (
                *("plaintext", "imageOverrider", "commandOverrider", "argsOverrider"),
                *("fieldOverrider", "annotationsOverrider"),
            )
        ),
        namespaced=kind == "OverridePolicy",
    )
    for kind in ("OverridePolicy", "ClusterOverridePolicy")
]

# Crossplane runs the image of a provider or function under a separate service account.
PACKAGES: Final = [
    WorkloadKind(
        group="pkg.crossplane.io",
        kind=kind,
        pods=(Pods(at="spec", images=("package",), count=NOT_RUN, partial=True),),
        namespaced=False,
    )
    for kind in ("Provider", "Function", "Configuration")
]

# CloudNativePG resources, which set the images of the Postgres and PgBouncer pods.
OPERATORS: Final = [
    WorkloadKind(
        group="postgresql.cnpg.io",
        kind="Cluster",
        pods=(
            Pods(
                at="spec",
                images=("imageName", "postgresql.extensions.*.image.reference"),
                context={
                    "runAsUser": "postgresUID",
                    "runAsGroup": "postgresGID",
                    "seccompProfile": "seccompProfile",
                },
                # The operator copies inheritedMetadata to the pods. It also reads AppArmor
                # annotations from the metadata of the Cluster.
                copied=("spec.inheritedMetadata",),
                partial=True,
            ),
        ),
    ),
    WorkloadKind(
        group="postgresql.cnpg.io",
        kind="Pooler",
        pods=(
            Pods(at="spec.pgbouncer", images=("image",), count=NOT_RUN, partial=True),
            Pods(at="spec.template.spec", supplied=("image",), partial=True),
        ),
    ),
    *(
        WorkloadKind(
            group="postgresql.cnpg.io",
            kind=kind,
            pods=(Pods(at="spec", images=("images.*", "componentImages.*"), partial=True),),
        )
        for kind in ("ImageCatalog", "ClusterImageCatalog")
    ),
]

KINDS: Final = [
    *EMBEDDING_KINDS,
    *EXTERNAL_SOURCE_KINDS,
    *EVENTS,
    *MONITORING,
    *OVERRIDES,
    *PACKAGES,
    *OPERATORS,
]
