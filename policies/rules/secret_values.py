"""Rules about secrets that are written into manifests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from pydantic import Field

from policies import cel
from policies.resources import Resource
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, pod_rule, resource_rule
from policies.secret_patterns import (
    ARGUMENT,
    CONFIGURATION_NAME,
    ENCRYPTED,
    FILE,
    HARMLESS,
    HARMLESS_ARGUMENT,
    NAME,
    NOT_SECRET_NAME,
    OPAQUE,
    PASSWORD,
    PASSWORD_FIELD,
    PASSWORD_OPTION,
    PATH_NAME,
    PLACEHOLDER,
    REFERENCE,
    SPARK_VARIABLE,
    TEMPLATE,
    VAGUE_NAME,
    VAGUE_VALUE,
    VALUE,
    contains_argument,
    contains_in_file,
    contains_secret,
    contains_setting,
    decoded,
    is_secret,
)
from policies.settings import ExactNames
from policies.values import UNKNOWN, Node, any_field
from policies.workloads import Container, Pod

_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_ENVIRONMENTS: Final = ("env", "envVars", "environment")
_PROSE_FIELDS: Final = ("description", "message", "summary")
_ACCOUNT_SECRET: Final = "kubernetes.io/service-account-token"  # noqa: S105  a type
_HIDDEN: Final = "a literal, which is not shown here"


class EnvironmentConfig(RuleConfig):
    """Configuration of the rules about secrets."""

    allowed_names: ExactNames = Field(
        default=[],
        description="Names of environment variables and data keys that look like secrets but are "
        "not.",
    )


def _hidden(text: str) -> str:
    """Describe a literal without showing it; include the line number for multiline text."""
    lines = enumerate(text.splitlines(), 1)
    secret = (number for number, line in lines if _sets_secret(line) or contains_setting(line))
    number = next(secret, None) if "\n" in text.strip() else None
    return _HIDDEN if number is None else f"a literal on line {number}, which is not shown here"


def _sets_secret(line: str) -> bool:
    return contains_secret(line) or contains_argument(line)


def _command_lines(container: Container) -> Iterator[tuple[Node, str]]:
    """Yield the command and the arguments of a container, each as one line."""
    for key in ("command", "args"):
        location = container.node[key]
        text = " ".join(word.text or "" for word in location.items())
        if text:
            yield location, text


_CEL_SECRET: Final = (
    "e.value != '' && !(e.name in settings.allowedNames)"
    f" && !e.value.matches({cel.literal(REFERENCE.pattern)})"
    f" && !(e.value.matches({cel.literal(HARMLESS.pattern)})"
    f" && (!e.name.matches({cel.literal(PASSWORD.pattern)})"
    f" || e.name.matches({cel.literal(PASSWORD_OPTION.pattern)})))"
    f" && (e.name.matches({cel.literal(NAME.pattern)})"
    f" && !(e.name.matches({cel.literal(PATH_NAME.pattern)}) && e.value.startsWith('/'))"
    f" && (e.name.matches({cel.literal(PASSWORD.pattern)})"
    f" || !e.name.matches({cel.literal(NOT_SECRET_NAME.pattern)})"
    f" && !e.value.matches({cel.literal(FILE.pattern)}))"
    f" || (e.name + ': ' + e.value).matches({cel.literal(VALUE.pattern)})"
    f" || (e.name.matches({cel.literal(VAGUE_NAME.pattern)})"
    f" && !e.name.matches({cel.literal(NOT_SECRET_NAME.pattern)})"
    f" && e.value.matches({cel.literal(VAGUE_VALUE.pattern)})))"
)
_CEL_LINE: Final = (
    f"l.matches({cel.literal(VALUE.pattern)}) || l.findAll({cel.literal(ARGUMENT.pattern)})"
    f".exists(m, !m.matches({cel.literal(HARMLESS_ARGUMENT.pattern)}))"
)


@pod_rule(
    name="no-literal-secrets",
    description="Secrets are not written into the environment, arguments or annotations of pods.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Keep the value in a Secret and refer to it with valueFrom.secretKeyRef. If the "
    "value is not secret, list the name of the variable in allowedNames.",
    config=EnvironmentConfig,
    references=["NSA Secrets", "CIS 5.4.1", "CIS 5.4.2", "OWASP K03"],
    admission=cel.Cel(
        "variables.containers.filter(c, c.?env.orValue([])"
        f".exists(e, has(e.value) && {_CEL_SECRET})"
        " || [c.?command.orValue([]).join(' '), c.?args.orValue([]).join(' ')]"
        f".exists(l, {_CEL_LINE})).map(c, 'container ' + c.name)"
        " + (variables.annotations.exists(a,"
        f" variables.annotations[a].matches({cel.literal(VALUE.pattern)}))"
        " ? ['annotations'] : [])",
        partial=True,
    ),
)
def no_literal_secrets(pod: Pod, config: EnvironmentConfig) -> Iterator[Violation]:
    """Everyone who may read the pod can read its environment, which also appears in logs."""
    for container in pod.containers:
        for variable in container.node["env"].items():
            name, value = variable["name"].text or "", variable["value"]
            if value.absent or value.value is UNKNOWN or name in config.allowed_names:
                continue
            if is_secret(name, str(value.value)):
                yield Violation(value, f"{name} as valueFrom.secretKeyRef", found=_HIDDEN)
        for location, line in _command_lines(container):
            if _sets_secret(line):
                words = [word.text or "" for word in location.items()]
                script = next(filter(_sets_secret, words), line)
                yield Violation(
                    location,
                    "$(NAME), and set the NAME variable with valueFrom.secretKeyRef",
                    found=_hidden(script),
                )
    for _, note in pod.annotations():
        if note.text and contains_secret(note.text):
            yield Violation(note, "nothing: annotations are not secret", found=_HIDDEN)


@resource_rule(
    name="no-secrets-in-manifests",
    description="Secrets are not written into ConfigMaps, custom resources or Secret manifests.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Create the Secret outside the repository, for example with External Secrets, and "
    "refer to it. If the value is not secret, list its name in allowedNames.",
    config=EnvironmentConfig,
    references=["NSA Secrets", "CIS 5.4.1", "CIS 5.4.2", "OWASP K03"],
)
def no_secrets_in_manifests(resource: Resource, config: EnvironmentConfig) -> Iterator[Violation]:
    """Everyone with access to the repository can read the secrets; base64 is not encryption."""
    if resource.kind == "CustomResourceDefinition":
        return
    if resource.is_kind("", "Secret"):
        if resource.root["type"].value == _ACCOUNT_SECRET:
            yield Violation(resource.root["type"], "nothing: tokens of this type never expire")
        # In a stack, the values come from encrypted configuration, and the engine encrypts them.
        for key in ("data", "stringData") if not resource.urn else ():
            for name, value in resource.root[key].fields():
                literal = value.present and value.value != "" and not _is_reference(value)
                if literal and name not in config.allowed_names:
                    yield Violation(value, "nothing: create this Secret elsewhere", found=_HIDDEN)
        return
    if resource.is_kind("", "ConfigMap"):
        for field in ("data", "binaryData"):
            for name, value in resource.root[field].fields():
                text = value.text or ""
                text = text if field == "data" else decoded(text)
                if name not in config.allowed_names and contains_in_file(name, text):
                    yield Violation(value, f"{name} into a Secret", found=_hidden(text))
        return
    if any_field(resource.properties, _may_be_secret):
        sealed = resource.is_kind("bitnami.com", "SealedSecret")
        for location in _secret_locations(resource.root, config):
            if sealed and location.steps[:2] == ("spec", "encryptedData"):
                continue
            expected = "a reference to a Secret"
            yield Violation(location, expected, found=_hidden(location.text or ""))


def _is_reference(value: Node) -> bool:
    """Return whether a value is encrypted by SOPS or is a placeholder that a tool replaces."""
    text = value.text or ""
    return bool(ENCRYPTED.search(text) or PLACEHOLDER.fullmatch(text.strip()))


def _is_secret_field(key: str, value: str) -> bool:
    """Return whether a field of a custom resource contains a secret, or text that sets one."""
    if not value:
        return False
    if contains_secret(value) or (key not in _PROSE_FIELDS and contains_setting(value)):
        return True
    if OPAQUE.search(f"{key}: {value}"):
        return True
    password, secret, variable = _named_secret(key)
    if variable:
        return is_secret(variable, value)
    named = password or (secret and not HARMLESS.search(value) and not value.startswith("/"))
    return named and not TEMPLATE.search(value)


@lru_cache(maxsize=4096)
def _named_secret(key: str) -> tuple[bool, bool, str]:
    """Classify a key of a custom resource.

    Return whether it names a password, whether it names a secret, and the name of the environment
    variable that it sets in Spark pods, if any.
    """
    variable = SPARK_VARIABLE.search(key)
    is_password, is_secret = PASSWORD_FIELD.search(key), CONFIGURATION_NAME.search(key)
    return bool(is_password), bool(is_secret), variable[2] if variable else ""


def _may_be_secret(key: str, value: Any) -> bool:
    if isinstance(value, str):
        return _is_secret_field(key, value)
    if isinstance(value, list):
        return _is_command(value)
    if not isinstance(value, dict):
        return False
    named = list(value.items()) if key in _ENVIRONMENTS else []
    if "value" in value:
        named += [(value.get("name"), value["value"]), (key, value["value"])]
    return any(
        isinstance(name, str) and isinstance(text, str) and is_secret(name, text)
        for name, text in named
    )


def _is_command(value: Any) -> bool:
    """Return whether a command, such as a probe's, contains a secret that spans several words."""
    words = [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
    return contains_argument(" ".join(words)) and not any(map(contains_argument, words))


def _secret_locations(root: Node, config: EnvironmentConfig) -> Iterator[Node]:
    """Yield the strings in an object that are secrets.

    The environment, arguments and annotations of pods are skipped, because `no-literal-secrets`
    checks them.
    """
    pending: list[tuple[Node, bool]] = [(root, False)]
    while pending:
        node, checked = pending.pop()
        if not checked and node.steps and node.steps[-1] in _ENVIRONMENTS:
            for key, value in node.fields():
                if key not in config.allowed_names and value.text and is_secret(key, value.text):
                    yield value
        name = node["name"].text
        text = node["value"].text
        reported = name not in config.allowed_names and not checked
        if name and text and reported and is_secret(name, text):
            yield node["value"]
            continue
        for key, child in _children(node):
            if isinstance(child.value, str):
                is_allowed = (name if key == "value" else key) in config.allowed_names
                is_allowed |= key == "password" and _refers_to_secret_key(node)
                may_be_secret = contains_secret(child.value) or not is_allowed
                if may_be_secret and not checked and _is_secret_field(key, child.value):
                    yield child
            elif isinstance(child.value, dict | list):
                in_pod = key in ("env", "command", "args") and _is_container(node)
                in_pod |= key == "annotations" and _is_pod(node.parent)
                if not (checked or in_pod or key in config.allowed_names):
                    if _is_command(child.value):
                        yield child
                    elif is_secret(key, child["value"].text or ""):
                        yield child["value"]
                pending.append((child, checked or in_pod))


def _refers_to_secret_key(node: Node) -> bool:
    """Return whether an object refers to a key of a Secret, as Strimzi's `passwordSecret` does."""
    return str(node.key).endswith("Secret") and bool(node["secretName"].text)


def _children(node: Node) -> Iterator[tuple[str, Node]]:
    yield from node.fields()
    for item in node.items():
        yield "", item


def _is_container(node: Node) -> bool:
    parent = node.parent
    return parent is not None and bool(parent.steps) and parent.steps[-1] in _CONTAINERS


def _is_pod(node: Node | None) -> bool:
    return node is not None and isinstance(node["spec"]["containers"].value, list)


RULES: list[Rule[Any]] = [no_literal_secrets, no_secrets_in_manifests]
