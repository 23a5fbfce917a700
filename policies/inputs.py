"""Input files of `policies.check` and similar commands: rules, configuration and manifests."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from policies.configuration import Configuration, configure, parse
from policies.documents import Document, read
from policies.rule import ConfigurationError, Rule

SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of manifest files."""
STDIN = "stdin"
"""Name of the standard input in reports."""


class UnusableInputError(Exception):
    """Input that cannot be checked; the message states the problem."""


@dataclass(frozen=True)
class Manifests:
    """Objects, the names of their files, and messages about documents that were skipped."""

    documents: list[Document]
    sources: list[str]
    skipped: list[str]


def read_configuration(path: str | Path | None, rules: Iterable[Rule[Any]]) -> Configuration:
    """Return the configuration in a file, or the defaults if `path` is None."""
    try:
        return configure({}, rules) if path is None else parse(Path(path).read_text("utf-8"), rules)
    except (ConfigurationError, OSError, UnicodeDecodeError) as error:
        name = "the configuration" if path is None else f"the configuration {path}"
        raise UnusableInputError(f"{name}: {error}") from error


def read_manifests(names: Sequence[str]) -> Manifests:
    """Return the objects in files, directories and stdin (`-`)."""
    manifests = Manifests([], [], [])
    for source, text in _texts(names):
        manifests.sources.append(source)
        manifests.documents.extend(read(source, text, manifests.skipped.append))
    if not manifests.documents:
        problem = "; ".join([f"no object found in {', '.join(names)}", *manifests.skipped])
        raise UnusableInputError(f"{problem}: nothing was checked")
    return manifests


def _texts(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if name == "-":
            yield STDIN, sys.stdin.buffer.read()
            continue
        path = Path(name)
        for file in manifests_in(path) if path.is_dir() else [path]:
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                raise UnusableInputError(f"{file}: {error.strerror}") from error


def add_rule_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the configuration file and for files with additional rules."""
    parser.add_argument("--config", metavar="FILE", help="levels, settings and exemptions, in JSON")
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with additional rules; may be repeated",
    )


def manifests_in(directory: Path) -> list[Path]:
    """Return the manifest files in a directory and its subdirectories, sorted by path.

    Raise UnusableInputError if one of the directories cannot be read.
    """

    def fail(error: OSError) -> NoReturn:
        raise UnusableInputError(f"{error.filename}: {error.strerror}") from error

    # `rglob` would skip directories that cannot be read.
    tree = os.walk(directory, onerror=fail)
    files = (Path(parent, name) for parent, _, names in tree for name in names)
    return sorted(file for file in files if file.suffix in SUFFIXES)
