"""Roles for a team's members and viewers in the namespace of the workloads."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from infra.manifests import DESCRIPTION, Manifest
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

    Members choose the contents of the pods of their runs, and a pod can mount any Secret of the
    namespace and use any of its service accounts. Members therefore have access to all of them,
    although their Role does not grant it.
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
    # Runs of kinds that are not Volcano Jobs also need these objects.
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
