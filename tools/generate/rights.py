"""Permission tables: requests in the syntax of `kubectl auth can-i`, checked against the Roles."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gitops.access.rights import Object, access
from infra.manifests import DESCRIPTION
from infra.settings.tenancy import TenancySettings
from infra.team_access import team_access

Manifest = Mapping[str, Any]
NAMESPACE: Final = "ml"
GROUPS: Final = ("members", "viewers")
"""Groups of a team. The groups of pipelines are `previews` and `updates`."""

TEAM_REQUESTS: Final = {
    "read runs": "get jobs.batch.volcano.sh",
    "read runs with steps": "list jobflows.flow.volcano.sh",
    "submit a run": "create jobs.batch.volcano.sh",
    "submit a run with steps": "create jobtemplates.flow.volcano.sh",
    "submit a run that is not a Volcano Job": "create podgroups.scheduling.volcano.sh",
    "change or suspend a run": "patch jobs.batch",
    "suspend or resume a Volcano Job": "create commands.bus.volcano.sh",
    "delete a run": "delete jobs.batch.volcano.sh",
    "read pods": "list pods",
    "read logs": "get pods --subresource=log",
    "read events": "list events",
    "see why a gang waits": "get podgroups.scheduling.volcano.sh",
    "see the remaining quota": "get resourcequotas",
    "read services and claims": "list persistentvolumeclaims",
    "read inference Deployments": "get deployments.apps",
    "read the platform's description": f"get configmaps/{DESCRIPTION}",
    "read other ConfigMaps": "get configmaps",
    "create pods directly": "create pods",
    "run commands in pods": "create pods --subresource=exec",
    "read Secrets": "get secrets",
    "change a Deployment": "patch deployments.apps",
    "expose a Service": "create services",
    "delete claims": "delete persistentvolumeclaims",
    "change the quota": "patch resourcequotas",
    "change permissions": "create rolebindings.rbac.authorization.k8s.io",
    "read nodes": "list nodes",
    "change queues": "patch queues.scheduling.volcano.sh",
}
STACK: Final = (
    Object("", "", "namespaces", NAMESPACE),
    Object("", "scheduling.volcano.sh", "queues", "research"),
    Object("", "admissionregistration.k8s.io", "validatingadmissionpolicies", "rules"),
    Object(NAMESPACE, "", "secrets", "registry"),
    Object(NAMESPACE, "apps", "deployments", "digits"),
    Object(NAMESPACE, "rbac.authorization.k8s.io", "roles", "team-members"),
)
"""Objects of the example stack, to which its pipelines need access."""

PIPELINE_REQUESTS: Final = {
    "create objects of the stack's kinds": "create deployments.apps",
    "change objects of the stack": "patch deployments.apps",
    "delete objects of the stack": "delete deployments.apps",
    "create objects of other kinds": "create jobs.batch",
    "change a queue of the stack": "patch queues.scheduling.volcano.sh/research",
    "change another queue": "patch queues.scheduling.volcano.sh/other",
    "delete the stack's namespace": f"delete namespaces/{NAMESPACE}",
    "delete another namespace": "delete namespaces/kube-system",
    "read an admission policy of the stack": (
        "get validatingadmissionpolicies.admissionregistration.k8s.io/rules"
    ),
    "change an admission policy of the stack": (
        "patch validatingadmissionpolicies.admissionregistration.k8s.io/rules"
    ),
    "read a Secret of the stack": "get secrets/registry",
    "read another Secret": "get secrets/other",
    "list Secrets": "list secrets",
    "change a Role of the stack": "patch roles.rbac.authorization.k8s.io/team-members",
    "change another Role": "patch roles.rbac.authorization.k8s.io/other",
    "read pods while an update waits": "list pods",
}
_READING: Final = ("get", "list", "watch")
DRY_RUNS: Final = "dry runs only"


def team_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row per request of a team: description, request, and one result per group."""
    groups = {group: [group] for group in GROUPS}
    tenancy = TenancySettings.model_validate({"namespace": NAMESPACE, "groups": groups})
    roles = team_access(tenancy)
    for what, request in TEAM_REQUESTS.items():
        answers = (_yes_or_no(is_allowed(roles, group, request)) for group in GROUPS)
        yield what, f"`{request}`", *answers


def pipeline_roles() -> list[Manifest]:
    """Return the objects that grant the groups `previews` and `updates` their permissions."""
    return list(access("example", STACK, {"preview": ["previews"], "update": ["updates"]}))


def pipeline_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row per request of a pipeline: description, request, and one result per group."""
    roles = pipeline_roles()
    for what, request in PIPELINE_REQUESTS.items():
        preview = is_allowed(roles, "previews", request)
        writes = request.split()[0] not in _READING
        yield (
            *(what, f"`{request}`"),
            DRY_RUNS if preview and writes else _yes_or_no(preview),
            _yes_or_no(is_allowed(roles, "updates", request)),
        )


def is_allowed(manifests: Iterable[Manifest], group: str, request: str) -> bool:
    """Return whether the Roles and ClusterRoles bound to a group allow a request."""
    verb, target, *options = request.split()
    resource, _, name = target.partition("/")
    plural, _, api_group = resource.partition(".")
    if options:
        plural += f"/{options[0].removeprefix('--subresource=')}"
    return any(
        verb in rule["verbs"]
        and api_group in rule["apiGroups"]
        and plural in rule["resources"]
        and name in rule.get("resourceNames", [name])
        for rule in _rules(list(manifests), group)
        if name or "resourceNames" not in rule
    )


def _rules(manifests: list[Manifest], group: str) -> Iterator[Mapping[str, Any]]:
    roles = {_key(each): each["rules"] for each in manifests if "rules" in each}
    for each in manifests:
        if "roleRef" in each and group in {subject["name"] for subject in each["subjects"]}:
            yield from roles[_key(each)]


def _key(manifest: Manifest) -> tuple[str, str]:
    """Return the namespace and name, which a Role and its binding share."""
    metadata = manifest["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _yes_or_no(allowed: bool) -> str:
    return "yes" if allowed else "no"
