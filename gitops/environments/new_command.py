"""`python -m gitops new-environment`: write the settings and policy configuration of a stack."""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gitops.engine import PROJECT
from gitops.errors import GitopsError
from workload.files import is_utf8, write_atomically

HELP = "create the files of a new environment from flags or from answers to prompts"
DESCRIPTION = """\
Write a commented Pulumi.NAME.yaml and policies/config/NAME.json for your cluster. On a terminal,
the command asks for every value that is not given as a flag; otherwise, it uses the defaults.
"""
EPILOG = """\
examples:
  python -m gitops new-environment lab
  python -m gitops new-environment lab --context lab.example.com --nodes 2 --gpus-per-node 8 \\
    --storage nfs --registry registry.example.com --no-install-plugin

exit status: 0 if the files were written, 1 if not. An existing environment is not changed.
"""
STORAGE_KINDS: Final = ("nfs", "cephfs", "existing")
_MAX_COUNT: Final = 10_000
"""Maximum count that is accepted: twice the number of nodes that Kubernetes supports."""
_UNQUOTED: Final = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*(:[0-9]+(/[A-Za-z0-9./_:-]+)?)?")


def _text(value: str) -> str:
    if not is_utf8(value):
        raise ValueError("use valid UTF-8")
    return value


@dataclass(frozen=True)
class _Question:
    """A flag, and the question that is asked if the flag is missing."""

    flag: str
    text: str
    default: Callable[[dict[str, Any]], Any]
    parse: Callable[[str], Any] = _text


def _constant(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda _: value


def _boolean(value: str) -> bool:
    answers = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
    if value.lower() not in answers:
        raise ValueError("answer yes or no")
    return answers[value.lower()]


def _count(value: str) -> int:
    number = int(value) if value.isdecimal() and len(value) <= len(str(_MAX_COUNT)) else 0
    if not 1 <= number <= _MAX_COUNT:
        raise ValueError(f"use a number from 1 to {_MAX_COUNT}")
    return number


def _storage_kind(value: str) -> str:
    if value not in STORAGE_KINDS:
        raise ValueError(f"use one of {', '.join(STORAGE_KINDS)}")
    return value


def _class_name(answers: dict[str, Any]) -> str | None:
    """Return the name of the storage class to create; None if the cluster already has a class."""
    return None if answers["storage"] == "existing" else f"{answers['storage']}-shared"


_QUESTIONS: Final = (
    _Question("context", "kubectl context of the cluster", lambda answers: answers["name"]),
    _Question("namespace", "namespace of the workloads", lambda answers: f"ml-{answers['name']}"),
    _Question("team", "name of the first team's queue", _constant("research")),
    _Question("nodes", "number of nodes with GPUs", _constant(1), _count),
    _Question("gpus_per_node", "number of GPUs per node", _constant(8), _count),
    _Question(
        "storage",
        "shared storage: nfs or cephfs (creates a class), or existing (the cluster has one)",
        _constant("nfs"),
        _storage_kind,
    ),
    _Question("storage_class", "name of the storage class", _class_name),
    _Question("registry", "registry of the images", _constant("registry.example.com")),
    _Question(
        "install_volcano", "install the Volcano scheduler (yes or no)", _constant(True), _boolean
    ),
    _Question(
        "install_plugin", "install NVIDIA's device plugin (yes or no)", _constant(True), _boolean
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and hyphens")
    for question in _QUESTIONS:
        flag = f"--{question.flag.replace('_', '-')}"
        default = _shown(question, question.default({"name": "NAME", "storage": "STORAGE"}))
        text = f"{question.text} (default: {default})"
        if question.parse is _boolean:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(flag, metavar="VALUE", help=text)
    parser.add_argument("--defaults", action="store_true", help="use the defaults without asking")
    parser.add_argument("--project", type=Path, default=PROJECT, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    interactive = sys.stdin.isatty() and not options.defaults
    name = options.name
    _check_name(name)
    target = options.project / f"Pulumi.{name}.yaml"
    config = options.project / "policies" / "config" / f"{name}.json"
    created_by_pulumi = _created_by_pulumi(target)
    if config.exists():
        raise GitopsError(f"{config} exists and was not changed: choose another name")
    answers: dict[str, Any] = {"name": name}
    for question in _QUESTIONS:
        answers[question.flag] = _answer(
            question, getattr(options, question.flag), answers, interactive
        )
    answers["gpus"] = answers["nodes"] * answers["gpus_per_node"]
    text = render(answers)
    _check(text)
    write_atomically(config, policies(answers).encode())
    try:
        write_atomically(target, f"{text}{created_by_pulumi}".encode())
    except BaseException:
        config.unlink()  # otherwise the next attempt would report an existing environment
        raise
    sys.stdout.write(_next_steps(name, target, config))
    return 0


def _created_by_pulumi(target: Path) -> str:
    """Return the content of a file that `pulumi stack init` created; empty if there is none.

    Raises:
        GitopsError: If the file has settings.
    """
    from gitops.stack_file import document

    if not target.exists():
        return ""
    if "config" in document(target):
        raise GitopsError(f"{target} exists and was not changed: choose another name")
    return target.read_text()


def _answer(question: _Question, given: Any, answers: dict[str, Any], interactive: bool) -> Any:
    default = question.default(answers)
    if isinstance(given, bool):
        return given
    flag = f"--{question.flag.replace('_', '-')}"
    if given is None and not interactive:
        if default is None:
            raise GitopsError(f"{flag} is missing: set it to the {question.text} in the cluster")
        return default
    try:
        return question.parse(given) if given is not None else _ask(question, default)
    except ValueError as error:
        raise GitopsError(f"{flag} is {given!r}: {error}") from None


def _shown(question: _Question, value: Any) -> str:
    return {True: "yes", False: "no"}[value] if question.parse is _boolean else str(value)


def _ask(question: _Question, default: Any) -> Any:
    hint = "" if default is None else f" [{_shown(question, default)}]"
    while True:
        try:
            answer = input(f"{question.text}{hint}: ").strip()
        except EOFError:
            sys.stdout.write("\n")
            raise GitopsError(
                "nothing was written: answer every question, or add --defaults"
            ) from None
        if not answer and default is not None:
            return default
        try:
            if answer:
                return question.parse(answer)
        except ValueError as error:
            sys.stdout.write(f"{error}\n")


def render(answers: Mapping[str, Any]) -> str:
    """Return the content of Pulumi.NAME.yaml. The template inserts every value as a YAML scalar."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701  the output is YAML, which `_scalar` quotes
        loader=FileSystemLoader(Path(__file__).parent),
        finalize=_scalar,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("stack.yaml.j2").render(answers)


def _scalar(value: object) -> str:
    """Return a value as a YAML scalar, quoted only if necessary."""
    import yaml

    from policies.kubernetes_yaml import scalar

    if isinstance(value, int):
        return json.dumps(value)
    text = str(value)
    # Some YAML parsers read `yes` as a boolean, although Pulumi does not.
    is_plain = _UNQUOTED.fullmatch(text) and scalar(text) == text
    return text if is_plain else yaml.safe_dump(text, default_style='"', width=math.inf).rstrip()


def policies(answers: Mapping[str, Any]) -> str:
    """Return the content of `policies/config/NAME.json` with the registries and the GPU budget."""
    plugin = ["gpu-system/DaemonSet/nvidia-device-plugin"] if answers["install_plugin"] else []
    registries = [answers["registry"], *(["nvcr.io/nvidia"] if plugin else [])]
    namespaces = ["*/Namespace/volcano-system", *(["*/Namespace/gpu-system"] if plugin else [])]
    gpus = answers["gpus"]
    values = {
        "image-registry-allowed": {"allowedRegistries": registries},
        "systemWorkloads": {"workloads": [*plugin, *namespaces]},
        "no-hidden-token": {
            "systemWorkloads": ["*/Deployment/failure-recorder", "*/Deployment/sweep-controller"]
        },
        "training-ends": "mandatory",
        "gpu-budget": {"maxGpus": gpus, "maxGpusPerQueue": {answers["team"]: gpus}},
    }
    return json.dumps(values, indent=2) + "\n"


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from infra.settings.types import DnsLabel

    try:
        TypeAdapter(DnsLabel).validate_python(name)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise GitopsError(f"the name {name!r} is invalid: it {problem}") from None


def _check(text: str) -> None:
    """Validate the settings before anything is written."""
    from gitops.environments.difference import values_of
    from gitops.stack_file import parse
    from infra.settings import SettingsError, validate

    try:
        validate(*values_of(parse(text)["config"]))
    except SettingsError as error:
        raise GitopsError("; ".join(error.problems)) from None


def _next_steps(name: str, target: Path, config: Path) -> str:
    return f"""\
Wrote {target.name} and {config.relative_to(target.parent)}. Next steps:

  1. Replace all names that end in example.com, and check the sizes, storage and images.
  2. Choose a secrets provider, and create the stack:
       pulumi stack init {name}
  3. Preview the stack, first without a cluster and then with your cluster:
       python -m gitops preview --stack {name} --rendered
       python -m gitops preview --stack {name}
  4. Add the environment, with its GPU model, to `environments` in gitops/config/prices.yaml.
  5. Commit all changed files. For pull requests, create the GitHub environments `{name}` and
     `preview-{name}`: docs/pull-requests.md.
"""
