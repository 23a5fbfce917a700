"""Test the rules and a configuration against good and bad manifests."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.catalogue import RULES, with_custom_rules
from policies.configuration import Configuration
from policies.documents import DocumentError, read
from policies.evaluation import applicable_rules, evaluate
from policies.inputs import UnusableInputError, add_rule_arguments, manifests_in, read_configuration
from policies.rule import ConfigurationError, Rule

_PASSED, _FAILED, _UNUSABLE = 0, 1, 2
_EXPECTED = re.compile(r"^# expect:(.*)$", re.MULTILINE)
_NOTHING, _MORE = "nothing", "..."
_EPILOG = """\
Every manifest in DIRECTORY is one case and is evaluated as a separate stack. A comment in the
manifest states the rules that the manifest violates:

  # expect: not-privileged                  exactly this mandatory rule
  # expect: not-privileged, no-host-path    exactly these
  # expect: not-privileged, ...             these, and possibly more rules
  # expect: nothing                         no mandatory rule

Advisory rules are compared only if they are expected. A case without the comment is an error. If
NAME.config.json exists next to NAME.yaml, the case uses that configuration instead of the --config
file.

examples:
  python -m policies.test cases/ --config policies.json
  python -m policies.test cases/ --rules team_rules.py --no-stack-rules

exit status:
  0  every case has the expected violations
  1  at least one case has different violations
  2  a case, a rule file or the configuration is invalid
"""


@dataclass(frozen=True)
class _Case:
    path: Path
    expected: frozenset[str]
    allows_more: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    whole_stack = not options.no_stack_rules
    try:
        rules = with_custom_rules(options.rules)
        common = read_configuration(options.config, rules)
        cases = list(_cases(Path(options.directory), {rule.name for rule in rules}))
        found = [
            _violated_rules(case, _configuration(case, common, rules), whole_stack)
            for case in cases
        ]
    except (UnusableInputError, ConfigurationError, DocumentError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _UNUSABLE
    problems = [_problem(case, *names) for case, names in zip(cases, found, strict=True)]
    for case, problem in zip(cases, problems, strict=True):
        sys.stdout.write(f"FAILED {case.path}: {problem}\n" if problem else f"ok     {case.path}\n")
    failed = sum(problem is not None for problem in problems)
    sys.stdout.write(f"cases: {len(cases) - failed} passed, {failed} failed\n")
    expected = {name for case in cases for name in case.expected}
    untested = [rule.name for rule in rules[len(RULES) :] if rule.name not in expected]
    if untested:
        sys.stdout.write(f"custom rules that no case violates: {', '.join(untested)}\n")
    return _FAILED if failed else _PASSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m policies.test",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory", metavar="DIRECTORY", help="directory of manifests with expectations"
    )
    add_rule_arguments(parser)
    parser.add_argument(
        "--no-stack-rules",
        action="store_true",
        help="skip the rules that need the whole stack",
    )
    return parser


def _cases(directory: Path, rules: set[str]) -> Iterator[_Case]:
    files = [path for path in manifests_in(directory) if not path.name.endswith(".config.json")]
    if not files:
        raise UnusableInputError(f"no manifest found in {directory}")
    for path in files:
        comments = _EXPECTED.findall(path.read_text("utf-8"))
        if len(comments) != 1:
            raise UnusableInputError(
                f"{path}: found {len(comments)} comments with expectations; write one, such as "
                "# expect: not-privileged"
            )
        names = {name.strip() for name in comments[0].split(",")} - {""}
        expected = frozenset(names - {_NOTHING, _MORE})
        if unknown := expected - rules:
            raise UnusableInputError(f"{path}: expects unknown rules: {', '.join(sorted(unknown))}")
        if (_NOTHING in names and len(names) > 1) or not names - {_MORE}:
            raise UnusableInputError(
                f"{path}: expects {comments[0].strip()!r}; write rules, or the word nothing"
            )
        yield _Case(path, expected, _MORE in names)


def _configuration(case: _Case, common: Configuration, rules: list[Rule[Any]]) -> Configuration:
    case_file = case.path.with_suffix(".config.json")
    return read_configuration(case_file, rules) if case_file.exists() else common


def _violated_rules(
    case: _Case, configuration: Configuration, whole_stack: bool
) -> tuple[set[str], set[str]]:
    """Return the mandatory rules that a case violates, and all rules that it violates."""
    try:
        documents = list(read(str(case.path), case.path.read_bytes()))
    except OSError as error:
        raise UnusableInputError(f"{case.path}: {error.strerror}") from error
    evaluated = {
        rule.name for rule, _, _ in applicable_rules(configuration, whole_stack=whole_stack)
    }
    if missing := case.expected - evaluated:
        raise UnusableInputError(
            f"{case.path}: expects {', '.join(sorted(missing))}, which the options or the "
            "configuration skip"
        )
    findings = evaluate(documents, configuration, whole_stack=whole_stack)
    mandatory = {finding.rule for finding in findings if finding.mandatory}
    return mandatory, {finding.rule for finding in findings}


def _problem(case: _Case, mandatory: set[str], violated: set[str]) -> str | None:
    """Return the difference between the violations of a case and its expectation, or None."""
    missing = case.expected - violated
    unexpected = set() if case.allows_more else mandatory - case.expected
    texts = [f"does not violate {', '.join(sorted(missing))}"] if missing else []
    texts += [f"violates {', '.join(sorted(unexpected))}"] if unexpected else []
    return " and ".join(texts) or None


if __name__ == "__main__":
    sys.exit(main())
