"""Analysis of the shell commands of probes and hooks: possible failures and sleep times."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from typing import Final

from kube.quantities import quantity_or_none
from policies.values import Node

_SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_WRAPPERS: Final = ("exec", "command", "env", "nohup", "busybox", "time")
_SAFE: Final = (
    *("true", ":", "echo", "printf", "sleep", "date", "hostname", "whoami", "id", "pwd", "uname"),
)
_SAFE_WITHOUT_ARGUMENTS: Final = (
    "ls",
    "cat",
    "env",
    "exit",
    "return",
    "head",
    "tail",
    "wc",
    "tee",
    "ps",
    "set",
)
"""Commands that succeed without arguments."""
_TESTS: Final = ("test", "[", "[[")
_FILE_TEST: Final = re.compile(r"-[a-zGLNOS]{1,2}")
_VALUE_TESTS: Final = ("-n", "-z", "-eq", "-ne", "-gt", "-ge", "-lt", "-le", "-a", "-o")
_PYTHON: Final = re.compile(r"(?:.*/)?python[0-9.]*")
_IDLE_PYTHON: Final = re.compile(
    r"\s*(?:import \w+\s*;\s*)*(?:pass|\d*|(?:sys\.|os\._)?exit\(0?\)|print\([^()]*\))\s*;?\s*"
)
_SEPARATORS: Final = (";", "&", "\n")
_SLEEP: Final = re.compile(r"\bsleep(?:\s+|\(\s*)(\d+(?:\.\d+)?)([smhd]?)\b")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def always_succeeds(probe: Node) -> bool:
    """Return whether a probe runs a command that cannot fail."""
    words = [item.text or "" for item in probe["exec"]["command"].items()]
    return bool(words) and _succeeds(words)


def sleep_seconds(handler: Node) -> Decimal:
    """Return the number of seconds for which a preStop handler sleeps."""
    seconds = quantity_or_none(handler["sleep"]["seconds"].value) or Decimal(0)
    line = " ".join(item.text or "" for item in handler["exec"]["command"].items())
    for number, unit in _SLEEP.findall(line):
        seconds += Decimal(number) * _SECONDS[unit]
    return seconds


def _succeeds(words: Sequence[str]) -> bool:
    """Return whether a command always succeeds.

    Redirections are treated as arguments: they normally do not fail in a container.
    """
    if not words:
        return True
    name, rest = words[0].rpartition("/")[2], list(words[1:])
    if name in _WRAPPERS and rest:
        return _succeeds([word for word in rest if not word.startswith("-")])
    if name in _SHELLS:
        options = [word for word in rest if word.startswith("-")]
        script = next((word for word in rest if not word.startswith("-")), None)
        runs_script = any("c" in option.lstrip("-") for option in options)
        errexit = any("e" in option and not option.startswith("--") for option in options)
        return runs_script and script is not None and _script_succeeds(script, errexit=errexit)
    if name in _TESTS:
        return _is_constant(rest)
    if _PYTHON.fullmatch(name):
        return len(rest) > 1 and rest[0] == "-c" and bool(_IDLE_PYTHON.fullmatch(rest[1]))
    return name in _SAFE or (
        name in _SAFE_WITHOUT_ARGUMENTS and not [word for word in rest if word != "0"]
    )


def _is_constant(operands: Sequence[str]) -> bool:
    """Return whether a test reads no files, variables or command output: its result is fixed."""
    values = [word for word in operands if word not in _VALUE_TESTS]
    return not any(_FILE_TEST.fullmatch(word) or "$" in word or "`" in word for word in values)


def _script_succeeds(script: str, *, errexit: bool) -> bool:
    """Return whether a script always succeeds; with `errexit`, it exits at the first failure."""
    lexer = shlex.shlex(script.strip().replace("\n", ";"), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return False  # The shell cannot parse the script either.
    lists = [
        list(group) for is_end, group in groupby(words, _SEPARATORS.__contains__) if not is_end
    ]
    if words and words[-1] == "&":
        return True
    ends = [words[index + 1 : index + 2] for index, word in enumerate(words) if word == "exit"]
    if any(code not in ([], ["0"], [";"]) for code in ends):
        return False
    return all(map(_list_succeeds, lists)) if errexit else not lists or _list_succeeds(lists[-1])


def _list_succeeds(words: Sequence[str]) -> bool:
    """Return whether a list of pipelines, joined by `&&` and `||`, always succeeds."""
    succeeded, operator, pipeline = False, "||", list[str]()
    for word in (*words, "&&"):
        if word not in ("&&", "||"):
            pipeline.append(word)
            continue
        start = len(pipeline) - pipeline[::-1].index("|") if "|" in pipeline else 0
        new = _succeeds([part for part in pipeline[start:] if part not in ("(", ")")])
        succeeded = succeeded or new if operator == "||" else succeeded and new
        operator, pipeline = word, []
    return succeeded
