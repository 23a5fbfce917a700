"""`python -m gitops new-environment`: a Pulumi.NAME.yaml that the settings accept."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gitops.engine import PROJECT
from gitops.errors import GitopsError
from workload.files import write_atomically

if TYPE_CHECKING:
    from gitops.environments.template import Environment

HELP = "write a new environment, by flags or by questions"
DESCRIPTION = """\
Writes a commented Pulumi.NAME.yaml and policies/config/NAME.json for a cluster of your own. What
no flag says is asked where somebody sits at the terminal, and has its default where nobody does.
"""
EPILOG = """\
examples:
  python -m gitops new-environment lab
  python -m gitops new-environment lab --context lab.example.com --nodes 2 --gpus-per-node 8 \\
    --storage nfs --registry registry.example.com --no-install-plugin

exit status: 0 when it is written, 1 when it is not (an environment of that name is left alone).
"""


@dataclass(frozen=True)
class _Question:
    """A flag, and what is asked where it is not given."""

    flag: str
    asks: str
    default: Callable[[dict[str, Any]], Any]
    kind: Callable[[str], Any] = str


def _same_as(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda answers: answers[key]


def _always(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda _: value


def _yes(value: str) -> bool:
    answers = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
    if value.lower() not in answers:
        raise ValueError("write yes or no")
    return answers[value.lower()]


def _count(value: str) -> int:
    number = int(value) if value.isdecimal() else 0
    if number < 1:
        raise ValueError("write a number of at least 1")
    return number


def _storage_kind(value: str) -> str:
    from gitops.environments.template import STORAGE_KINDS

    if value not in STORAGE_KINDS:
        raise ValueError(f"write one of {', '.join(STORAGE_KINDS)}")
    return value


_QUESTIONS = (
    _Question("context", "kubectl context of the cluster", _same_as("name")),
    _Question("namespace", "namespace of the workloads", lambda a: f"ml-{a['name']}"),
    _Question("team", "name of the first team's queue", _always("research")),
    _Question("nodes", "nodes with GPUs", _always(1), _count),
    _Question("gpus_per_node", "GPUs of each node", _always(8), _count),
    _Question(
        "storage",
        "shared storage: nfs or cephfs (a class is made), or existing (the cluster has one)",
        _always("nfs"),
        _storage_kind,
    ),
    _Question("storage_class", "name of the storage class", lambda a: f"{a['storage']}-shared"),
    _Question("registry", "registry of the images", _always("registry.example.com")),
    _Question("install_volcano", "install the scheduler Volcano (yes or no)", _always(True), _yes),
    _Question("install_plugin", "install NVIDIA's device plugin (yes or no)", _always(True), _yes),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and -")
    for question in _QUESTIONS:
        flag = f"--{question.flag.replace('_', '-')}"
        if question.kind is _yes:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=question.asks)
        else:
            parser.add_argument(flag, metavar="VALUE", help=question.asks)
    parser.add_argument(
        "--defaults", action="store_true", help="ask nothing, and take the defaults"
    )
    parser.add_argument("--project", type=Path, default=PROJECT, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from gitops.environments.template import Environment, rules, text

    asking = sys.stdin.isatty() and not options.defaults
    answers: dict[str, Any] = {"name": options.name}
    for question in _QUESTIONS:
        answers[question.flag] = _answer(question, getattr(options, question.flag), answers, asking)
    environment = Environment(**answers)
    written = text(environment)
    _check(environment, written)
    target = options.project / f"Pulumi.{environment.name}.yaml"
    config = options.project / "policies" / "config" / f"{environment.name}.json"
    for file in (target, config):
        if file.exists():
            raise GitopsError(f"{file} is there already and was not changed: choose another name")
    write_atomically(target, written.encode())
    write_atomically(config, rules(environment).encode())
    sys.stdout.write(_next_steps(environment, target, config))
    return 0


def _answer(question: _Question, given: Any, answers: dict[str, Any], asking: bool) -> Any:
    default = question.default(answers)
    if isinstance(given, bool):
        return given
    if given is None and not asking:
        return default
    try:
        return question.kind(given) if given is not None else _ask(question, default)
    except ValueError as error:
        flag = f"--{question.flag.replace('_', '-')}"
        raise GitopsError(f"{flag} is {given!r}: {error}") from None


def _ask(question: _Question, default: Any) -> Any:
    shown = {True: "yes", False: "no"}.get(default, default) if question.kind is _yes else default
    while True:
        said = input(f"{question.asks} [{shown}]: ").strip()
        if not said:
            return default
        try:
            return question.kind(said)
        except ValueError as error:
            sys.stdout.write(f"{error}\n")


def _check(environment: "Environment", written: str) -> None:
    """Lets the settings judge the text before anything is written."""
    import yaml
    from pydantic import TypeAdapter, ValidationError

    from gitops.environments.reading import values_of
    from infra.settings import SettingsError, validate
    from infra.settings.types import DnsLabel

    try:
        TypeAdapter(DnsLabel).validate_python(environment.name)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise GitopsError(f"the name is {environment.name!r}: it {problem}") from None
    try:
        validate(*values_of(yaml.safe_load(written)["config"]))
    except SettingsError as error:
        raise GitopsError("; ".join(error.problems)) from None


def _next_steps(environment: "Environment", target: Path, config: Path) -> str:
    name = environment.name
    return f"""\
{target.name} and {config.relative_to(target.parent)} are written. What to do next:

  1. Replace what ends in example.com, and read the comments: sizes, storage, images.
  2. Choose what encrypts secrets, and make the stack:
       pulumi stack init {name}
  3. Look at what would be made, without a cluster and then with yours:
       python -m gitops preview --stack {name} --rendered
       python -m gitops preview --stack {name}
  4. Write prices and products of its GPUs below `environments` in gitops/config/prices.yaml.
  5. Commit both files. For pull requests, make the GitHub environments `{name}` and
     `preview-{name}`: docs/pull-requests.md.
"""
