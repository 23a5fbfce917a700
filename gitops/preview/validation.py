"""Validation by the API server, without which a preview is incomplete.

The provider asks the API server for the result of each change (server-side dry-run). If the user
may not create and patch objects, or the API server does not answer, it compares manifests only, and
does not report that.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gitops.engine import Stack
from gitops.errors import GitopsError
from gitops.stack_file import document, section
from kube.kinds import KINDS

_SECONDS: Final = 20
_PATH: Final = 256
"""Maximum length of a path; a longer setting is the content of a kubeconfig."""

Attributes = Mapping[str, str]
"""`resourceAttributes` of a SelfSubjectAccessReview."""


def probe(stack: Stack, *, dry_run: bool = True) -> tuple[str, ...]:
    """Return why the API server will not validate a preview; nothing if it will.

    Without `dry_run`, check only that the API server answers. The program of another project may
    use a cluster that its configuration does not name, so no failure is an error there.

    Raises:
        GitopsError: If the API server of the configured cluster does not answer.
    """
    configuration = document(stack.file)
    cluster = section(configuration, "cluster")
    rendered = cluster.get("render_to") is not None
    if rendered or _provider(configuration, "renderYamlToDirectory") is not None:
        return ()
    if reason := _not_for_kubectl(configuration):
        return (_unknown(reason),)
    asked = list(_asked(configuration)) if dry_run else []
    try:
        answers = _answers(stack, asked, kubectl_options(configuration))
    except GitopsError as error:
        if cluster:
            raise
        return (_unknown(str(error)),)
    if answers is None:
        return (_unknown("`kubectl` is not on the PATH."),)
    denied = ", ".join(
        f"`{each['verb']} {each['resource']}`"
        for each, allowed in zip(asked, answers, strict=True)
        if not allowed
    )
    if not denied:
        return ()
    return (
        f"Not validated by the API server: this user may not {denied}, so the preview shows "
        "changed manifests, but not what the API server would refuse or replace.",
    )


def _unknown(reason: str) -> str:
    return f"It is unknown whether the API server validated this preview: {reason}"


def _not_for_kubectl(configuration: dict[str, Any]) -> str | None:
    """Return why kubectl cannot use the cluster that Pulumi uses, if that is known."""
    if section(configuration, "cluster"):
        return None
    kubeconfig = _provider(configuration, "kubeconfig")
    if kubeconfig is not None and not (isinstance(kubeconfig, str) and len(kubeconfig) < _PATH):
        return "`kubernetes:kubeconfig` is not the path of a file."
    if "environment" in configuration:
        return "the cluster may depend on the stack's environment in Pulumi ESC."
    return None


def _asked(configuration: dict[str, Any]) -> Iterator[Attributes]:
    """Yield the permissions that dry runs need, for one object of each kind."""
    space = section(configuration, "tenancy").get("namespace")
    namespace = {"namespace": space} if isinstance(space, str) else {}
    for group, resource, name, inside in _objects(configuration):
        where = namespace if inside else {}
        yield {"verb": "create", "group": group, "resource": resource, **where}
        # This permission may be limited to names.
        yield {"verb": "patch", "group": group, "resource": resource, "name": name, **where}


def _objects(configuration: dict[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield group, resource and name of objects, and whether they are in the namespace."""
    if names := _keys(configuration, "volcano", "queues"):
        yield "scheduling.volcano.sh", "queues", names[0], False
    if names := _keys(configuration, "storage", "claims"):
        yield "", "persistentvolumeclaims", names[0], True
    if names := _keys(configuration, "inference", "services"):
        yield "apps", "deployments", names[0], True
    jobs = section(configuration, "training").get("jobs")
    written = jobs.values() if isinstance(jobs, dict) else ()
    kinds = {str(job.get("kind", "volcano")) for job in written if isinstance(job, dict)}
    for kind in sorted(KINDS.keys() & kinds):
        resource = KINDS[kind].resource
        yield resource.group, resource.plural, "", True


def _keys(configuration: dict[str, Any], name: str, key: str) -> list[str]:
    found = section(configuration, name).get(key)
    return [str(name) for name in found] if isinstance(found, dict) else []


def _provider(configuration: dict[str, Any], key: str) -> Any:
    """Return a setting of the default provider of Kubernetes."""
    return configuration.get("config", {}).get(f"kubernetes:{key}")


def kubectl_options(configuration: dict[str, Any]) -> list[str]:
    """Return the options with which kubectl uses the cluster of a stack's configuration."""
    cluster = section(configuration, "cluster")
    found = []
    for option in ("context", "kubeconfig"):
        # Other projects configure the default provider.
        value = cluster.get(option, _provider(configuration, option))
        if isinstance(value, str) and value != "in-cluster":
            found += [f"--{option}", value]
    return found


def _answers(
    stack: Stack, asked: Sequence[Attributes], options: Sequence[str]
) -> list[bool] | None:
    """Return the API server's answers; None if kubectl is not installed."""
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        # A stack without such objects asks whether the API server answers.
        for attributes in asked or [{"verb": "get", "resource": "namespaces"}]
    ]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    output = 'jsonpath={.status.allowed}{"\\n"}'
    command = ["kubectl", "create", "--validate=false", "--filename=-", "--output", output]
    # With --request-timeout, kubectl in a pod would not find the pod's own cluster.
    command += options
    try:
        done = subprocess.run(
            command,
            cwd=stack.project,
            input=given,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise _unreachable(stack, f"no answer in {_SECONDS} seconds") from None
    answers = done.stdout.split()
    if done.returncode != 0 or len(answers) != len(reviews):
        raise _unreachable(stack, done.stderr.strip() or done.stdout.strip())
    return [answer == "true" for answer in answers][: len(asked)]


def _unreachable(stack: Stack, reason: str) -> GitopsError:
    return GitopsError(
        f"the cluster of the stack {stack.name} does not answer, so nothing was previewed: "
        f"{reason} (correct the kubeconfig, its context or its login; --rendered needs no cluster)"
    )
