"""Roles for previews and updates of a stack.

A server-side dry run needs the same verbs as the change itself, so RBAC alone cannot keep previews
from writing. An admission policy therefore rejects all writes by preview groups except dry runs.
Admission policies cannot check changes to admission policies and webhook configurations
(https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/), so preview
groups get only read access to objects of these kinds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gitops.runs.snapshot import BUILT_IN_RESOURCES, OPTIONAL_RESOURCES
from kube.names import ADMISSION_GROUP, RBAC_GROUP

Manifest = Mapping[str, Any]
Purpose = Literal["preview", "update"]

_VERBS: Final[dict[Purpose, tuple[str, ...]]] = {
    "preview": ("get", "create", "patch"),
    "update": ("get", "list", "watch", "create", "patch", "update", "delete"),
}
_VERBS_NOT_LIMITED_BY_NAME: Final = frozenset({"create", "list", "watch"})
_WATCHED: Final = {
    "": ("pods", "events", "endpoints"),
    "apps": ("replicasets", "controllerrevisions"),
    "discovery.k8s.io": ("endpointslices",),
}
"""Resources that Pulumi reads while it waits for workloads, Services and volume claims."""


@dataclass(frozen=True, order=True)
class Object:
    """An object of a stack. The namespace is empty for cluster-scoped objects."""

    namespace: str
    group: str
    resource: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest) -> Object:
        """Return the object that a manifest describes."""
        group = str(manifest["apiVersion"]).rpartition("/")[0]
        metadata = manifest.get("metadata") or {}
        return cls(
            str(metadata.get("namespace") or ""),
            group,
            plural(str(manifest["kind"])),
            str(metadata.get("name") or ""),
        )


def plural(kind: str) -> str:
    """Return the plural resource name of a kind, like `meta.UnsafeGuessKindToResource` in Go."""
    singular = kind.lower()
    if singular == "endpoints":
        return singular
    if singular.endswith("s"):
        return f"{singular}es"
    return f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"


def access(
    name: str, objects: Iterable[Object], groups: Mapping[Purpose, Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield the Roles and bindings for the groups that preview or update the stack named `name`.

    If there are preview groups, the first objects are the admission policy that limits these groups
    to dry runs, and the policy's binding.
    """
    all_objects = sorted(objects)
    if previewers := groups.get("preview"):
        yield from _dry_run_only(f"gpu-platform-preview-{name}", previewers)
    for purpose, members in groups.items():
        if not members:
            continue
        title = f"gpu-platform-{purpose}-{name}"
        subjects = _subjects(members)
        for namespace in sorted({"", *(each.namespace for each in all_objects)}):
            inside = [each for each in all_objects if each.namespace == namespace]
            yield from _role_and_binding(
                title, namespace, _rules(inside, namespace, purpose), subjects
            )


def snapshots(groups: Sequence[str], namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the Roles and bindings for groups that take snapshots of a cluster.

    `namespace` is Volcano's namespace.
    """
    kinds = defaultdict(list, {"apps": ["deployments"]})
    for each in (*BUILT_IN_RESOURCES, *OPTIONAL_RESOURCES):
        resource, _, group = each.partition(".")
        kinds[group].append(resource)
    rules = [_rule(group, found, ("list",)) for group, found in kinds.items()]
    rules.append(_rule("", ["pods/log"], ("get",)))
    subjects = _subjects(groups)
    yield from _role_and_binding("gpu-platform-snapshot", "", rules, subjects)
    settings = [_rule("", ["configmaps"], ("list",))]
    yield from _role_and_binding("gpu-platform-snapshot", namespace, settings, subjects)


def _subjects(groups: Sequence[str]) -> list[dict[str, str]]:
    return [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": group} for group in groups]


def _rules(objects: Sequence[Object], namespace: str, purpose: Purpose) -> list[dict[str, Any]]:
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in objects:
        names[each.group, each.resource].append(each.name)
    rules = [
        rule
        for (group, resource), found in names.items()
        for rule in _resource_rules(group, resource, found, purpose, bool(namespace))
    ]
    if not namespace:
        # The UID of kube-system identifies the cluster.
        rules.append(_rule("", ["namespaces"], ("get",), ["kube-system"]))
    elif purpose == "update":
        rules += [
            _rule(group, resources, ("get", "list", "watch"))
            for group, resources in _WATCHED.items()
        ]
    return rules


def _resource_rules(
    group: str, resource: str, names: Sequence[str], purpose: Purpose, namespaced: bool
) -> Iterator[dict[str, Any]]:
    verbs = _VERBS[purpose]
    if purpose == "preview" and group == ADMISSION_GROUP:
        verbs = ("get",)
    is_cluster_update = not namespaced and purpose == "update"
    secret = (group, resource) == ("", "secrets")
    if not (is_cluster_update or secret or group == RBAC_GROUP):
        yield _rule(group, [resource], verbs)
        return
    # The rules list the objects by name. Otherwise, the group could read other Secrets, extend
    # other Roles and delete objects of other teams. RBAC cannot limit `create` by name, and limits
    # `list` and `watch` only for requests that select a single name.
    unnamed = [
        verb for verb in verbs if verb in ({"create"} if secret else _VERBS_NOT_LIMITED_BY_NAME)
    ]
    yield _rule(group, [resource], [v for v in verbs if v not in _VERBS_NOT_LIMITED_BY_NAME], names)
    if unnamed:
        yield _rule(group, [resource], unnamed)
    if group == RBAC_GROUP and resource in {"roles", "clusterroles"}:
        yield _rule(group, [resource], ("escalate", "bind"), names)


def _rule(
    group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()
) -> dict[str, Any]:
    rule = {"apiGroups": [group], "resources": [*resources], "verbs": [*verbs]}
    return rule | ({"resourceNames": sorted(names)} if names else {})


def _role_and_binding(
    name: str, namespace: str, rules: list[dict[str, Any]], subjects: list[dict[str, str]]
) -> Iterator[dict[str, Any]]:
    scope = "" if namespace else "Cluster"
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    yield {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": f"{scope}Role",
        "metadata": metadata,
        "rules": rules,
    }
    yield {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": f"{scope}RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": f"{scope}Role", "name": name},
        "subjects": subjects,
    }


def _dry_run_only(name: str, groups: Sequence[str]) -> Iterator[dict[str, Any]]:
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    # Access reviews, such as those of `kubectl auth can-i`, store nothing, so they are allowed.
    access_reviews = {
        "apiGroups": ["authorization.k8s.io", "authentication.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["*"],
    }
    listed = ", ".join(f"'{group}'" for group in groups)
    yield {
        "apiVersion": f"{ADMISSION_GROUP}/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [{**everything, "operations": ["*"]}],
                "excludeResourceRules": [access_reviews],
            },
            "matchConditions": [
                {
                    "name": "previewers",
                    "expression": f"request.userInfo.groups.exists(g, g in [{listed}])",
                }
            ],
            "validations": [
                {
                    "expression": "has(request.dryRun) && request.dryRun",
                    "message": "this group is for previews: only dry runs are allowed",
                }
            ],
        },
    }
    yield {
        "apiVersion": f"{ADMISSION_GROUP}/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
