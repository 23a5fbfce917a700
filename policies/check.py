"""Check Kubernetes manifests with the rules of the pack, without Pulumi."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from policies.catalogue import RULES
from policies.configuration import Configuration, configure, parse
from policies.documents import Document, DocumentError, read
from policies.evaluation import applied, evaluate
from policies.interchange import junit, openreports, sarif
from policies.reports import FAIL_ON, Report, as_json, github, human
from policies.rule import ConfigurationError

_CLEAN, _REFUSED, _UNUSABLE = 0, 1, 2
_SUFFIXES = (".yaml", ".yml", ".json")
_STDIN = "stdin"
_FORMATS: dict[str, Callable[[Report], str]] = {
    "human": human,
    "json": as_json,
    "sarif": sarif,
    "junit": junit,
    "github": github,
    "openreports": openreports,
}
_EPILOG = """\
examples:
  helm template release chart | python -m policies.check -
  kustomize build overlays/prod | python -m policies.check - --config policies.json
  python -m policies.check manifests/ --format sarif > policies.sarif
  python -m policies.check job.yaml --no-stack-rules

exit status:
  0  no violation that --fail-on selects
  1  at least one violation that --fail-on selects
  2  the input or the configuration is not valid; nothing was checked

Pass everything that is deployed together in one call: some rules check that the queue, the claim or
the NetworkPolicy that a workload needs is declared. List objects that exist elsewhere in the
configuration (existingQueues, existingNamespaces, existingPriorityClasses, existingServices), the
same file as Pulumi's --policy-pack-config:

  {
    "image-digest-pinned": "mandatory",
    "image-registry-allowed": {"allowedRegistries": ["registry.example.com"]},
    "training-queue-declared": {"existingQueues": ["research"]},
    "training-ends": "disabled"
  }
"""


class _UnusableInputError(Exception):
    """The input cannot be checked; the message states what to pass instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    # Such a short run creates little garbage, and collecting takes a third of its time.
    with _without_collection():
        return _check(options)


@contextmanager
def _without_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(options: argparse.Namespace) -> int:
    try:
        configuration = _configuration(options.config)
        documents, sources, skipped = _documents(options.files)
    except (_UnusableInputError, DocumentError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _UNUSABLE
    whole = not options.no_stack_rules
    rules = [rule for rule, _, _ in applied(configuration, whole=whole)]
    left_out = 0 if whole else len(applied(configuration, whole=True)) - len(rules)
    findings = evaluate(documents, configuration, whole=whole)
    report = Report(
        findings,
        sources,
        len(documents),
        rules,
        left_out,
        configuration.disabled,
        skipped,
        options.fail_on,
        options.verbose,
    )
    sys.stdout.write(_FORMATS[options.format](report))
    return _REFUSED if report.failed else _CLEAN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m policies.check",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="YAML or JSON of one or several documents, a folder of such files, or - for stdin",
    )
    parser.add_argument("--config", metavar="FILE", help="levels, settings and exemptions, in JSON")
    parser.add_argument(
        "--format", choices=list(_FORMATS), default="human", help="how to report (default: human)"
    )
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="mandatory",
        metavar="LEVEL|SEVERITY",
        help="exit with status 1 for violations of this level or of at least this severity: "
        f"{', '.join(FAIL_ON)} (default: mandatory)",
    )
    parser.add_argument("--verbose", action="store_true", help="list rules that passed, too")
    parser.add_argument(
        "--no-stack-rules",
        action="store_true",
        help="leave out the rules that need everything that is deployed together, "
        "for a check of single files",
    )
    return parser


def _configuration(path: str | None) -> Configuration:
    try:
        return configure({}, RULES) if path is None else parse(Path(path).read_text("utf-8"), RULES)
    except (ConfigurationError, OSError, UnicodeDecodeError) as error:
        raise _UnusableInputError(f"the configuration {path}: {error}") from error


def _documents(names: Sequence[str]) -> tuple[list[Document], list[str], list[str]]:
    """Return the objects, the names of the files, and what is no object."""
    documents: list[Document] = []
    sources: list[str] = []
    skipped: list[str] = []
    for source, text in _texts(names):
        sources.append(source)
        documents += read(source, text, skipped.append)
    if not documents:
        found = "; ".join([f"no object found in {', '.join(names)}", *skipped])
        raise _UnusableInputError(f"{found}: nothing was checked")
    return documents, sources, skipped


def _texts(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if name == "-":
            yield _STDIN, sys.stdin.buffer.read()
            continue
        path = Path(name)
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
        for file in files:
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                raise _UnusableInputError(f"{file}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
