"""Check Kubernetes manifests with the rules of the pack, without Pulumi."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from policies import output
from policies.catalogue import with_custom_rules
from policies.configuration import Configuration
from policies.documents import Document, DocumentError
from policies.evaluation import applicable_rules, evaluate
from policies.inputs import (
    STDIN,
    UnusableInputError,
    add_rule_arguments,
    read_configuration,
    read_manifests,
)
from policies.reports import FAIL_ON, Report, as_json, github, human, junit, openreports, sarif
from policies.rule import ConfigurationError

_CLEAN, _VIOLATED, _UNUSABLE = 0, 1, 2
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
  0  no violation reaches the threshold of --fail-on
  1  at least one violation reaches the threshold of --fail-on
  2  the input or the configuration is not valid; nothing was checked

In one call, pass everything that is deployed together: some rules check that the queue, the claim
or the NetworkPolicy that a workload needs is declared. In the configuration, list the objects that
exist elsewhere (existingQueues, existingNamespaces, existingPriorityClasses, existingServices). The
configuration file has the same format as the file for Pulumi's --policy-pack-config:

  {
    "image-digest-pinned": "mandatory",
    "image-registry-allowed": {"allowedRegistries": ["registry.example.com"]},
    "training-queue-declared": {"existingQueues": ["research"]},
    "training-ends": "disabled"
  }
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    # A short run creates little garbage, but garbage collection would take a third of its time.
    with _without_garbage_collection():
        return _check(options)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(options: argparse.Namespace) -> int:
    try:
        configuration = read_configuration(options.config, with_custom_rules(options.rules))
        manifests = read_manifests(options.files)
        if options.fix or options.dry_run:
            needs_fix = _fix(manifests.documents, configuration, options.dry_run)
            if options.dry_run:
                return _VIOLATED if needs_fix else _CLEAN
            manifests = read_manifests(options.files)
    except (UnusableInputError, ConfigurationError, DocumentError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _UNUSABLE
    whole_stack = not options.no_stack_rules
    rules = [rule for rule, _, _ in applicable_rules(configuration, whole_stack=whole_stack)]
    skipped_rules = len(applicable_rules(configuration, whole_stack=True)) - len(rules)
    report = Report(
        evaluate(manifests.documents, configuration, whole_stack=whole_stack),
        manifests.sources,
        len(manifests.documents),
        rules,
        skipped_rules,
        configuration.disabled,
        manifests.skipped,
        options.fail_on,
        options.verbose,
    )
    sys.stdout.write(_FORMATS[options.format](report))
    return _VIOLATED if report.failed else _CLEAN


def _fix(documents: Sequence[Document], configuration: Configuration, dry_run: bool) -> bool:
    """Apply the remediations or print them as a diff; return whether any file needs a fix."""
    # Only --fix needs the library that writes YAML.
    from policies.fix import Fix, fixes

    if any(document.source == STDIN for document in documents):
        raise UnusableInputError("--fix writes files; pass files or directories instead of -")
    results = list(fixes(documents, configuration))
    for result in results:
        if not isinstance(result, Fix):
            sys.stderr.write(f"{result}\n")
        elif dry_run:
            sys.stdout.write(result.diff)
        else:
            result.write()
            sys.stderr.write(f"fixed {result.path}: {', '.join(result.rules)}\n")
    return bool(results)


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
        help="YAML or JSON file with one or more documents, directory of files, or - for stdin",
    )
    parser.add_argument(
        "--pack",
        action="version",
        version=str(Path(__file__).parent),
        help="print the directory of the policy pack, for `pulumi up --policy-pack`",
    )
    add_rule_arguments(parser)
    parser.add_argument(
        "--format", choices=list(_FORMATS), default="human", help="output format (default: human)"
    )
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="mandatory",
        metavar="LEVEL|SEVERITY",
        help="exit with status 1 for violations of at least this level or severity: "
        f"{', '.join(FAIL_ON)} (default: mandatory)",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="apply the remediations of rules to the files, then check them",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the changes of --fix as a diff without writing or checking anything; exit with "
        "status 1 if there are changes, or if a file cannot be fixed",
    )
    parser.add_argument("--verbose", action="store_true", help="also list rules that passed")
    parser.add_argument(
        "--no-stack-rules",
        action="store_true",
        help="skip the rules that need the whole stack, to check single files",
    )
    return parser


if __name__ == "__main__":
    sys.exit(output.run(main, failed=_UNUSABLE))
