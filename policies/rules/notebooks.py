"""Rule that requires notebooks to have a token, because they execute any code they receive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from policies.controllers import Workload
from policies.rule import Level, Rule, Severity, Violation, pod_rule
from policies.settings import SystemConfig
from policies.values import Node
from policies.workloads import Container, Pod

_SERVER: Final = re.compile(
    r"(^|[\s/;&|(\"'])(jupyter(-?lab|-notebook|-server)?|start-notebook(\.\w+)?)([\s;&|)\"']|$)"
    r"|-m\s*(jupyterlab|jupyter_server|notebooks?)(\s|$)"
)
"""Pattern of command lines that start a Jupyter server."""
_NO_AUTHENTICATION: Final = re.compile(
    r"\.(token|password|hashed_password)(\s*=|\s)\s*('{2}|\"{2}|(?=\s|$))"
    r"|\.allow_unauthenticated_access(\s*=|\s)\s*[\"']?(?i:true|1)"
)
"""Pattern of arguments that disable authentication."""
_OPEN_SERVER: Final = re.compile(
    r"\bcode-server\b.*\s--auth[=\s]+[\"']?none\b"
    r"|\b(openvscode-server|serve-web)\b.*\s--without-connection-token\b"
    r"|\bmarimo\b.*\s--no-token\b",
    re.DOTALL,
)
"""Pattern of command lines that start other notebooks and editors without authentication."""
_ARGUMENTS_VARIABLE: Final = "NOTEBOOK_ARGS"
"""Variable from which `start-notebook` reads additional arguments."""
_TOKEN_FILE: Final = re.compile(r"--token-file[=\s]([^\s]+)")
_VARIABLE: Final = "JUPYTER_TOKEN"
_EXPECTED: Final = (
    f"{_VARIABLE} as valueFrom.secretKeyRef, or {_VARIABLE}_FILE with a path in a Secret volume"
)
_WITHOUT_ARGUMENT: Final = "the same value without the argument that disables the token"


def is_notebook(workload: Workload) -> bool:
    """Return whether a pod of a workload starts a Jupyter server."""
    pods = workload.pods
    return any(_starts_server(container) for pod in pods for container in pod.containers)


def _starts_server(container: Container) -> bool:
    return bool(_SERVER.search(_command_line(container)))


def _command_line(container: Container) -> str:
    """Return the command and arguments of a container as one line."""
    return " ".join(
        word.text or "" for key in ("command", "args") for word in container.node[key].items()
    )


@pod_rule(
    name="notebook-token",
    description="A notebook requires a token, which comes from a Secret.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation=f"Set {_EXPECTED}, and remove arguments that disable the token.",
    config=SystemConfig,
    references=["OWASP K06"],
)
def notebook_token(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Anyone who reaches a notebook without a token can run code and use its GPUs and Secrets."""
    if pod.resource.is_named(config.system_workloads):
        return
    for container in pod.containers:
        line = _command_line(container)
        if _OPEN_SERVER.search(line) or (
            _starts_server(container) and _NO_AUTHENTICATION.search(line)
        ):
            key = "args" if container.node["args"].present else "command"
            yield Violation(container.node[key], _WITHOUT_ARGUMENT)
        elif not _starts_server(container):
            continue
        elif (found := _disabling_variable(container)) is not None:
            yield Violation(found, _WITHOUT_ARGUMENT)
        elif (field := _missing_token(pod, container)) is not None:
            yield Violation(field, _EXPECTED)


def _disabling_variable(container: Container) -> Node | None:
    """Return the value of `NOTEBOOK_ARGS` if it disables the token."""
    for variable in container.node["env"].items():
        is_disabling = _NO_AUTHENTICATION.search(variable["value"].text or "")
        if variable["name"].text == _ARGUMENTS_VARIABLE and is_disabling:
            return variable["value"]
    return None


def _missing_token(pod: Pod, container: Container) -> Node | None:
    """Return the `env` field if it lacks a token; None if the token is in a Secret or unknown."""
    files = [match[1] for match in _TOKEN_FILE.finditer(_command_line(container))]
    env = container.node["env"]
    for variable in env.items():
        name = variable["name"].text
        if name == _VARIABLE and not variable["valueFrom"]["secretKeyRef"].absent:
            return None
        if name == f"{_VARIABLE}_FILE" and variable["value"].text:
            files.append(str(variable["value"].text))
    if not env.known:
        return None
    secrets = {
        volume["name"].text
        for volume in pod.spec["volumes"].items()
        if not volume["secret"].absent and volume["secret"]["optional"].value is not True
    }
    for mount in container.node["volumeMounts"].items():
        path = f"{(mount['mountPath'].text or '').rstrip('/')}/"
        if mount["name"].text in secrets and any(file.startswith(path) for file in files):
            return None
    return env


RULES: list[Rule[Any]] = [notebook_token]
