"""Generated parts of documentation pages: tables, and code from `examples/`.

The permission tables list requests in the syntax of `kubectl auth can-i`. Their results are
computed from the Roles.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pulumi.provider.experimental.analyzer import PropertyDefinition

from gitops.access import Object, access
from gpu_platform.plugin.host import definitions
from infra.manifests import DESCRIPTION
from infra.outputs import PLATFORM_OUTPUTS
from infra.settings.schema import Schema, fields, nested
from infra.settings.tenancy import TenancySettings
from infra.settings.training.checks import LIMITED_SETTINGS
from infra.settings.training.network import NETWORK_DEFAULTS
from infra.team_access import team_access
from kube.kinds import KINDS
from kube.kinds.record import Kind

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
_TABLE: Final = re.compile(
    r"(<!-- (\w+): written by `make generate` -->\n).*?(<!-- end -->)", re.DOTALL
)
_EXAMPLE: Final = re.compile(r"(<!-- example: (\S+) -->\n```\w+\n).*?(```)", re.DOTALL)


def team_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row per request of a team: description, request, and one result per group."""
    groups = {group: [group] for group in GROUPS}
    tenancy = TenancySettings.model_validate({"namespace": NAMESPACE, "groups": groups})
    roles = team_access(tenancy)
    for what, request in TEAM_REQUESTS.items():
        answers = (_yes_or_no(is_allowed(roles, group, request)) for group in GROUPS)
        yield what, f"`{request}`", *answers


def pipeline_roles() -> list[Manifest]:
    """Return the objects that grant the `previews` and `updates` groups their permissions."""
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


def filled(pages: Mapping[Path, str], root: Path) -> dict[Path, str]:
    """Return the pages with updated generated parts.

    Raise ValueError unless each table is on exactly one page.
    """
    found_tables = [name for text in pages.values() for _, name, _ in _TABLE.findall(text)]
    if sorted(found_tables) != sorted(TABLES):
        raise ValueError(
            f"docs/ contains the tables {', '.join(sorted(found_tables))}, but must contain "
            f"exactly one of each: {', '.join(sorted(TABLES))}"
        )
    return {
        page: _EXAMPLE.sub(
            lambda found: found[1] + (root / found[2]).read_text() + found[3],
            _TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text),
        )
        for page, text in pages.items()
    }


def kinds_table() -> str:
    """Return the table of job kinds: objects, requirements, and behavior after a failure."""
    rows = [
        (f"`{name}`", kind.objects, _requirements(kind), kind.after_fault)
        for name, kind in KINDS.items()
    ]
    return _table(("kind", "objects", "requirements", "after a failure"), rows)


def _requirements(kind: Kind) -> str:
    return f"{kind.needs}; {kind.image_needs} in the image" if kind.image_needs else kind.needs


def capabilities_table() -> str:
    """Return a table with the settings that only some kinds support, one per row."""
    rows = [
        (
            f"{setting.title} (`{setting.key}`)",
            *("yes" if kind in setting.kinds else "no" for kind in KINDS),
        )
        for setting in LIMITED_SETTINGS
    ]
    return _table(("", *KINDS), rows)


def networks_table() -> str:
    """Return a table with the environment variables for each network."""
    rows = [
        (f"`{network}`", ", ".join(f"`{name}={value}`" for name, value in variables.items()))
        for network, variables in NETWORK_DEFAULTS.items()
    ]
    return _table(("`nccl.network`", "sets"), rows)


def outputs_table() -> str:
    """Return a table of the stack's outputs, with one row for each output and field."""
    schema = PLATFORM_OUTPUTS.json_schema()
    return _table(("output", "value", "meaning"), _outputs(schema, schema["$defs"], ""))


def _outputs(section: Schema, definitions: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    for field in fields(section):
        optional = "" if field.required else ", or absent"
        kind = field.kind.replace("section", "mapping").replace("mapping to mapping", "mapping")
        inner = [*nested(field.schema)]
        # pydantic omits the description of a field if it equals that of the section.
        common = [str(definitions[name]["description"]) for step, name in inner if not step]
        meaning = field.description or "".join(common)
        yield f"`{path}{field.name}`", f"{kind}{optional}", meaning
        for step, name in inner:
            yield from _outputs(definitions[name], definitions, f"{path}{field.name}{step}.")


def team_rights_table() -> str:
    """Return a table with the permissions of a team's members and viewers."""
    return _table(("permission", "request", *GROUPS), team_rows())


def pipeline_rights_table() -> str:
    """Return a table with the permissions of pipelines."""
    return _table(("permission", "request", "previews", "updates"), pipeline_rows())


def attributes_table() -> str:
    """Return a table of component attributes, which have the same names in all languages."""
    rows = [
        (f"`{component}`", f"`{name}`", _value(output), str(output.description))
        for component, definition in definitions().items()
        for name, output in definition.outputs.items()
    ]
    return _table(("component", "attribute", "value", "meaning"), rows)


def _value(output: PropertyDefinition) -> str:
    if output.ref is not None:
        name = _STACK_OUTPUTS[output.ref.rpartition(":")[2]]
        return f"same as the platform stack's `{name}` output"
    if output.items is not None:
        return "list of string"
    return "mapping to string" if output.additional_properties else "string"


_STACK_OUTPUTS: Final = {
    "RunOutput": "runs.<key>",
    "InferenceOutput": "inference.<key>",
    "GpuNodes": "gpuNodes",
}


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "kinds": kinds_table,
    "capabilities": capabilities_table,
    "networks": networks_table,
    "outputs": outputs_table,
    "team_rights": team_rights_table,
    "pipeline_rights": pipeline_rights_table,
    "attributes": attributes_table,
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
