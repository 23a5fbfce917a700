"""Objects for teams in the namespace of the workloads: Roles, and a description of the platform.

Team members cannot read the stack's state, so the description is a ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pulumi

from infra.component import Component
from infra.manifests import DESCRIPTION, DESCRIPTION_KEY, Manifest, standard_labels
from infra.outputs import SharedResources
from infra.settings import StackSettings
from infra.settings.tenancy import TenancySettings
from kube.kinds import RESOURCES, TRAINING_RUNTIME
from kube.kinds.volcano import COMMAND, TEMPLATE
from kube.names import LEADER_WORKER_SET_GROUP, RBAC_GROUP, SCHEDULING_GROUP

_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "update", "patch", "delete")
_READABLE: Final = {
    "": ("pods", "events", "services", "persistentvolumeclaims", "resourcequotas", "limitranges"),
    "apps": ("deployments", "replicasets", "statefulsets"),
    "autoscaling": ("horizontalpodautoscalers",),
    "discovery.k8s.io": ("endpointslices",),
    "events.k8s.io": ("events",),
    LEADER_WORKER_SET_GROUP: ("leaderworkersets",),
    "policy": ("poddisruptionbudgets",),
    SCHEDULING_GROUP: ("podgroups",),
}
MEMBERS: Final = "team-members"
VIEWERS: Final = "team-viewers"


def team_access(tenancy: TenancySettings) -> list[Manifest]:
    """Return a Role and a RoleBinding for members and for viewers, if they have groups.

    Members define the pods of their runs, and a pod can mount any Secret of the namespace and use
    any of its service accounts. Members therefore have access to all of them, although their Role
    does not grant it.
    """
    groups = {MEMBERS: tenancy.groups.members, VIEWERS: tenancy.groups.viewers}
    rules = {MEMBERS: [*_read_rules(), *_run_rules()], VIEWERS: [*_read_rules()]}
    return [
        manifest
        for name, bound in groups.items()
        if bound
        for manifest in _role(name, tenancy.namespace, rules[name], bound)
    ]


def _read_rules() -> Iterator[Manifest]:
    """Yield the rules for reading runs and services, but not their Secrets and ConfigMaps."""
    yield _rule("", ("pods/log",), ("get",))
    for group, resources in (*_READABLE.items(), *_run_resources().items()):
        yield _rule(group, resources, _READ)


def _run_rules() -> Iterator[Manifest]:
    """Yield the rules for submitting, suspending, resuming, changing and deleting runs."""
    for group, resources in _run_resources().items():
        yield _rule(group, resources, _WRITE)
    # Some kinds need a PodGroup or a TrainingRuntime. Commands suspend and resume Volcano Jobs.
    yield _rule(SCHEDULING_GROUP, ("podgroups",), _WRITE)
    yield _rule(TRAINING_RUNTIME.group, (TRAINING_RUNTIME.plural,), _WRITE)
    yield _rule(COMMAND.group, (COMMAND.plural,), ("create",))
    description = _rule("", ("configmaps",), ("get",))
    yield description | {"resourceNames": [DESCRIPTION]}


def _run_resources() -> dict[str, list[str]]:
    resources: dict[str, list[str]] = {}
    for resource in (*RESOURCES, TEMPLATE):
        resources.setdefault(resource.group, []).append(resource.plural)
    return resources


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> Manifest:
    return {"apiGroups": [group], "resources": [*resources], "verbs": [*verbs]}


def _role(
    name: str, namespace: str, rules: list[Manifest], groups: Sequence[str]
) -> Iterator[Manifest]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    yield {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    yield {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": group} for group in groups],
    }


@dataclass(frozen=True, kw_only=True)
class PlatformDescriptionArgs:
    """Data that `python -m gpu_platform run` needs to create the same runs as the stack.

    The stack adds `labels` and `annotations` to every object. The description contains no secret.
    """

    shared: SharedResources
    priority_classes: Sequence[str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, settings: StackSettings, shared: SharedResources) -> Self:
        """Build the arguments from the stack's settings."""
        cluster = settings.cluster
        return cls(
            shared=shared,
            priority_classes=settings.volcano.known_priority_classes,
            labels=cluster.labels,
            annotations=cluster.annotations,
        )


class PlatformDescription(Component):
    """A ConfigMap in the namespace of the workloads."""

    def __init__(
        self, name: str, args: PlatformDescriptionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("PlatformDescription", name, opts)
        document = pulumi.Output.json_dumps(
            {
                "stack": pulumi.get_stack(),
                "outputs": args.shared.outputs,
                "identities": dict(args.shared.identities),
                "priority_classes": list(args.priority_classes),
                "labels": dict(args.labels),
                "annotations": dict(args.annotations),
            },
            sort_keys=True,
        )
        self.create(
            f"{name}-description",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": DESCRIPTION,
                    "namespace": args.shared.namespace,
                    "labels": standard_labels("platform", DESCRIPTION),
                },
                "data": {DESCRIPTION_KEY: document},
            },
        )
        self.register_outputs({})
