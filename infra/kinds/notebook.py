"""The `notebook` kind: a Volcano Job with one JupyterLab pod, and the route to it.

When the server exits, the job is aborted and holds no GPU until someone resumes it. The job
restarts automatically only after an eviction.
"""

from dataclasses import replace
from typing import Final

from infra.kinds.gang import Gang, metadata, volcano_pod_template
from infra.kinds.volcano import volcano_objects
from infra.manifests import Manifest, compact, from_namespaces
from infra.pods import Pod, Volume, secret_source
from infra.settings.training.job import NotebookRouteSettings, NotebookSettings
from kube.kinds import NOTEBOOK_CONTAINER
from kube.names import GATEWAY_GROUP, HOMES_PATH, SECRETS_PATH, TMP_PATH, TOKEN_VOLUME

PORT: Final = 8888
_TOKEN_PATH: Final = f"{SECRETS_PATH}/notebook"
_POLICIES: Final = [
    {"events": ["PodEvicted"], "action": "RestartJob"},
    {"events": ["PodFailed", "TaskCompleted"], "action": "AbortJob"},
]


def build(gang: Gang) -> list[Manifest]:
    """Return the route's objects, if there is a route, and the Volcano Job."""
    notebook = gang.notebook
    if notebook is None:
        raise ValueError(f"{gang.name} is of kind 'notebook', but has no notebook settings")
    task = {
        "name": "worker",
        "replicas": 1,
        "template": volcano_pod_template(gang, _pod(gang.pod, notebook)),
    }
    job = volcano_objects(gang, [task], None, _POLICIES)
    return [*(_route(gang, notebook.route) if notebook.route else ()), *job]


def _pod(pod: Pod, notebook: NotebookSettings) -> Pod:
    home = f"{HOMES_PATH}/{pod.labels['app.kubernetes.io/name']}"
    base_url = _base_url(notebook)
    token = secret_source(notebook.token_secret)
    return replace(
        pod,
        container=NOTEBOOK_CONTAINER,
        command=[
            *("python3", "-m", "notebooks"),
            f"--home={home}",
            f"--base-url={base_url}",
            f"--port={PORT}",
            f"--token-file={_TOKEN_PATH}/token",
            f"--idle-minutes={notebook.idle_minutes}",
        ],
        # The runtime directory contains a copy of the token, which must not be stored on the claim.
        env={**pod.env, "HOME": home, "JUPYTER_RUNTIME_DIR": f"{TMP_PATH}/jupyter"},
        ports={"http": PORT},
        probes={
            "readinessProbe": {
                "httpGet": {"path": f"{base_url}api", "port": "http"},
                "periodSeconds": 5,
            }
        },
        volumes=[
            *pod.volumes,
            Volume(name=TOKEN_VOLUME, source=token, path=_TOKEN_PATH, read_only=True),
        ],
    )


def _base_url(notebook: NotebookSettings) -> str:
    path = notebook.route.path if notebook.route else "/"
    return f"{path.rstrip('/')}/"


def _route(gang: Gang, route: NotebookRouteSettings) -> list[Manifest]:
    """Return the Service, the NetworkPolicy that admits the Gateway, and the HTTPRoute."""
    object_metadata = metadata(gang)
    port = {"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}
    gateway = route.gateway.namespace or gang.namespace
    rule = {
        # JupyterLab serves its paths under this prefix, so the route does not strip it.
        "matches": [{"path": {"type": "PathPrefix", "value": route.path}}],
        "backendRefs": [{"name": gang.name, "port": PORT, "weight": 100}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": object_metadata,
            "spec": {"type": "ClusterIP", "selector": gang.selector, "ports": [port]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": object_metadata,
            "spec": {
                "podSelector": {"matchLabels": gang.selector},
                "policyTypes": ["Ingress"],
                "ingress": [from_namespaces([gateway], [PORT])],
            },
        },
        {
            "apiVersion": f"{GATEWAY_GROUP}/v1",
            "kind": "HTTPRoute",
            "metadata": object_metadata,
            "spec": compact(
                {
                    "parentRefs": [route.gateway.parent_reference],
                    "hostnames": list(route.hostnames) or None,
                    "rules": [rule],
                }
            ),
        },
    ]
