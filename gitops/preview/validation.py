"""Checks of a preview that need the cluster: whether it can validate the plan, and storage classes.

The provider requests the result of each change from the API server (server-side dry run). It
silently compares only the manifests if the user is not allowed to create and patch objects, if the
cluster lacks their kind, or if the API server does not respond.
"""

import json
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from gitops.engine import Stack
from gitops.errors import GitopsError
from gitops.runs.snapshot import error_of
from gitops.stack_file import document, section
from infra.settings.cluster import expand_home
from kube.kinds import KINDS
from kube.names import (
    BATCH_GROUP,
    GATEWAY_GROUP,
    KEDA_GROUP,
    LEADER_WORKER_SET_GROUP,
    MONITORING_GROUP,
    SCHEDULING_GROUP,
)

_TIMEOUT_SECONDS: Final = 20
_MAX_PATH_LENGTH: Final = 256
"""Maximum length of a path. A longer `kubeconfig` setting is taken to be a kubeconfig's content."""

_MONITORS: Final = {"podmonitors": "training", "prometheusrules": "gpu-platform"}
"""Maps resources of the Prometheus operator to the name of an object that the stack creates."""
_LEADER_WORKER_SETS: Final = (LEADER_WORKER_SET_GROUP, "leaderworkersets")

Attributes = Mapping[str, str]
"""`resourceAttributes` of a SelfSubjectAccessReview."""


def probe(stack: Stack, *, dry_run: bool = True) -> tuple[str, ...]:
    """Return the reasons why the API server cannot validate a preview, and missing storage classes.

    Without `dry_run`, only check that the API server responds. If the stack configures no cluster,
    a missing response is not an error but one of the reasons, because kubectl and Pulumi may use
    different clusters.

    Raises:
        GitopsError: If the API server of the configured cluster does not respond.
    """
    configuration = document(stack.file)
    cluster = section(configuration, "cluster")
    rendered = cluster.get("render_to") is not None
    if rendered or _provider(configuration, "renderYamlToDirectory") is not None:
        return ()
    if reason := _kubectl_problem(configuration):
        return (_unknown_validation(reason),)
    accesses = list(_required_permissions(configuration)) if dry_run else []
    options = kubectl_options(configuration)
    try:
        results = _check_access(stack, accesses, options)
        kinds = _external_kinds(configuration) if results else set()
        missing = ", ".join(f"`{name}`" for name in _missing_kinds(stack, kinds, options))
        claims = _claims_without_class(stack, configuration, options) if results else {}
    except GitopsError as error:
        if cluster:
            raise
        return (_unknown_validation(str(error)),)
    if results is None:
        return (_unknown_validation("`kubectl` is not on the PATH."),)
    denied = ", ".join(
        f"`{each['verb']} {each['resource']}`"
        for each, allowed in zip(accesses, results, strict=True)
        if not allowed
    )
    notices = {
        f"Not validated by the API server: this user is not allowed to {denied}, so the preview "
        "shows changed manifests, but not what the API server would reject or replace.": denied,
        f"Not validated by the API server: the cluster lacks {missing}. Install the operator "
        "first; otherwise, the update fails.": missing,
    }
    return (
        *(notice for notice, found in notices.items() if found),
        *(
            f"The cluster has no storage class `{name}`, so the update waits for the claims "
            f"{names}, and then fails. Correct `storage_class`, or create the class first."
            for name, names in claims.items()
        ),
    )


def _unknown_validation(reason: str) -> str:
    return f"It is unknown whether the API server validated this preview: {reason}"


def _kubectl_problem(configuration: dict[str, Any]) -> str | None:
    """Return the reason why kubectl and Pulumi may use different clusters; None if they cannot."""
    if section(configuration, "cluster"):
        return None
    kubeconfig = _provider(configuration, "kubeconfig")
    if kubeconfig is not None and not (
        isinstance(kubeconfig, str) and len(kubeconfig) < _MAX_PATH_LENGTH
    ):
        return "`kubernetes:kubeconfig` is not a file path."
    if "environment" in configuration:
        return "the cluster may depend on the stack's environment in Pulumi ESC."
    return None


def _required_permissions(configuration: dict[str, Any]) -> Iterator[Attributes]:
    """Yield the permissions that dry runs require, for one object of each kind."""
    name = section(configuration, "tenancy").get("namespace")
    namespace = {"namespace": name} if isinstance(name, str) else {}
    for group, resource, name, namespaced in _objects(configuration):
        scope = namespace if namespaced else {}
        yield {"verb": "create", "group": group, "resource": resource, **scope}
        # The permission to patch may be limited to certain names.
        yield {"verb": "patch", "group": group, "resource": resource, "name": name, **scope}


def _objects(configuration: dict[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the group, resource and name of one object per kind, and whether it is namespaced."""
    if names := _keys(configuration, "volcano", "queues"):
        yield SCHEDULING_GROUP, "queues", names[0], False
    if names := _keys(configuration, "storage", "claims"):
        yield "", "persistentvolumeclaims", names[0], True
    for (group, plural), name in _services(configuration).items():
        yield group, plural, name, True
    for plural, name in _routes(configuration).items():
        yield GATEWAY_GROUP, plural, name, True
    if section(configuration, "monitoring").get("prometheus") == "operator":
        for plural, name in _MONITORS.items():
            yield MONITORING_GROUP, plural, name, True
    jobs = _mappings(section(configuration, "training").get("jobs")).values()
    kinds = {str(job.get("kind", "volcano")) for job in jobs}
    for kind in sorted(KINDS.keys() & kinds):
        resource = KINDS[kind].resource
        yield resource.group, resource.plural, "", True


def _external_kinds(configuration: dict[str, Any]) -> set[str]:
    """Return the names of the custom resources whose operators the stack does not install."""
    provided = {"", "apps", "batch"}
    if section(configuration, "volcano").get("install", True):
        provided |= {SCHEDULING_GROUP, BATCH_GROUP}
    monitoring = _mappings(section(configuration, "monitoring"))
    if monitoring.get("kube_prometheus_stack", {}).get("install", False):
        provided.add(MONITORING_GROUP)
    objects = _objects(configuration)
    return {f"{plural}.{group}" for group, plural, *_ in objects if group not in provided}


def _services(configuration: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Map the resources (group, plural) of inference services to the name of one service each."""
    services = _mappings(section(configuration, "inference").get("services"))
    found: dict[tuple[str, str], str] = {}
    for name, service in services.items():
        grouped = _mappings(service).get("server", {}).get("nnodes", 1) != 1
        found.setdefault(_LEADER_WORKER_SETS if grouped else ("apps", "deployments"), name)
        if "keda" in _mappings(_mappings(service).get("autoscaling")):
            found.setdefault((KEDA_GROUP, "scaledobjects"), name)
    return found


def _routes(configuration: dict[str, Any]) -> dict[str, str]:
    """Map each resource of the Gateway API that the stack creates to the name of one route.

    The name is empty for the route of a notebook, which is named after its run.
    """
    services = _mappings(section(configuration, "inference").get("services"))
    jobs = _mappings(section(configuration, "training").get("jobs")).values()
    notebooks = (_mappings(job).get("notebook") for job in jobs)
    found: dict[str, str] = {}
    for name, owner in [*services.items(), *(("", notebook) for notebook in notebooks)]:
        route = _mappings(owner).get("route", {})
        if "gateway" in route:
            found.setdefault("httproutes", name)
        if "gateway" in route and route.get("grpc_hostnames"):
            found.setdefault("grpcroutes", name)
    return found


def _mappings(value: Any) -> dict[str, dict[str, Any]]:
    """Return the entries whose values are mappings; empty if `value` is not a mapping."""
    items = value.items() if isinstance(value, dict) else ()
    return {str(key): each for key, each in items if isinstance(each, dict)}


def _keys(configuration: dict[str, Any], name: str, key: str) -> list[str]:
    value = section(configuration, name).get(key)
    return [str(name) for name in value] if isinstance(value, dict) else []


def _provider(configuration: dict[str, Any], key: str) -> Any:
    """Return a setting of the default Kubernetes provider."""
    return configuration.get("config", {}).get(f"kubernetes:{key}")


def kubectl_options(configuration: dict[str, Any]) -> list[str]:
    """Return the kubectl options that select the cluster of a stack's configuration."""
    cluster = section(configuration, "cluster")
    options = []
    for option in ("context", "kubeconfig"):
        # Stacks of other projects configure the default Kubernetes provider instead.
        value = cluster.get(option, _provider(configuration, option))
        if isinstance(value, str) and value != "in-cluster":
            # Unlike the provider, kubectl does not expand the path.
            options += [f"--{option}", expand_home(value) if option == "kubeconfig" else value]
    return options


def _check_access(
    stack: Stack, accesses: Sequence[Attributes], options: Sequence[str]
) -> list[bool] | None:
    """Return whether the API server allows each access; None if kubectl is not installed."""
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        # If there are no permissions to check, only check that the API server responds.
        for attributes in accesses or [{"verb": "get", "resource": "namespaces"}]
    ]
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    output = 'jsonpath={.status.allowed}{"\\n"}'
    command = ["create", "--validate=false", "--filename=-", "--output", output]
    try:
        done = _kubectl(stack, [*command, *options], manifests)
    except FileNotFoundError:
        return None
    results = done.stdout.split()
    if done.returncode != 0 or len(results) != len(reviews):
        raise _unreachable(stack, error_of(done))
    return [result == "true" for result in results][: len(accesses)]


def _missing_kinds(stack: Stack, names: Collection[str], options: Sequence[str]) -> list[str]:
    """Return the names of custom resources that the cluster lacks."""
    if not names:
        return []
    # If an aggregated API is not available, kubectl fails, but prints all other resources.
    done = _kubectl(stack, ["api-resources", "--output=name", *options])
    existing = done.stdout.split()
    return sorted({*names}.difference(existing)) if existing else []


def _claims_without_class(
    stack: Stack, configuration: dict[str, Any], options: Sequence[str]
) -> dict[str, str]:
    """Map each missing storage class to its claims; empty if the user may not list the classes."""
    claims: defaultdict[str, list[str]] = defaultdict(list)
    for name, claim in _mappings(section(configuration, "storage").get("claims")).items():
        if claim.get("storage_class") is not None:
            claims[str(claim["storage_class"])].append(f"`{name}`")
    provided = {*_keys(configuration, "storage", "classes")}
    if provided.issuperset(claims):
        return {}
    done = _kubectl(stack, ["get", "storageclasses", "--output=name", *options])
    if done.returncode != 0:
        return {}
    provided.update(line.rpartition("/")[2] for line in done.stdout.split())
    return {name: ", ".join(claims[name]) for name in sorted(claims.keys() - provided)}


def _kubectl(
    stack: Stack, arguments: Sequence[str], manifests: str = ""
) -> subprocess.CompletedProcess[str]:
    # --request-timeout is not used, because kubectl would then ignore the in-cluster configuration.
    try:
        return subprocess.run(
            ["kubectl", *arguments],
            cwd=stack.project,
            input=manifests,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(stack, f"no response within {_TIMEOUT_SECONDS} seconds") from None


def _unreachable(stack: Stack, reason: str) -> GitopsError:
    return GitopsError(
        f"the cluster of stack {stack.name} does not respond, so nothing was previewed: "
        f"{reason} (check the kubeconfig, its context and the login; --rendered needs no cluster)"
    )
