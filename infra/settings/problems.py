"""Error messages for an invalid configuration."""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from infra.settings.schema import description, has_key, keys

PROJECT: Final = "gpu-platform"

_RULES: Final[Mapping[str, str]] = {
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be a boolean (true or false)",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "finite_number": "must be a finite number",
}


_REMOVED: Final[Mapping[str, str]] = {
    "gpu.install": "`provider: existing` replaces `install: false`; remove `install: true`",
    "training.jobs.*.suspend": "`state: suspended` replaces `suspend: true`; remove "
    "`suspend: false`",
    "training.jobs.*.ttl_seconds": "remove it; finished runs stay until you stop them",
    "inference.services.*.autoscaling.queue_depth": "use `requests_in_flight`, the target number "
    "of queued and running requests per pod",
    "inference.services.*.server.grpc_port": "remove it; clients use HTTP",
    "inference.services.*.server.max_connections_per_peer": "use `max_share_per_peer`",
    "inference.services.*.server.queue": "use `requests_in_flight`",
}
"""Advice for the keys of previous versions. `*` is the name of a job or service."""

_UNION: Final = "union"
"""Type of the error that replaces Pydantic's separate errors for the types of a union."""

_WITHOUT_SUBJECT: Final = re.compile(r"(write|set|use|choose|a|another) ")
"""Start of an imperative or a noun phrase. Other requirements need a subject, as in `it must …`."""


def full_key(*path: str | int) -> str:
    """Return a key in the format of `pulumi config set --path`, with the project as prefix."""
    return f"{PROJECT}:{dotted(path)}"


def dotted(path: Iterable[str | int]) -> str:
    """Return a path inside a section, such as `tolerations[0].key`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]


def choice(known: Collection[str]) -> str:
    """Return the advice for an unknown name: use a known name, or declare the unknown one."""
    return f"use {either(sorted(known))}" if known else "declare it there"


def either(alternatives: Iterable[str]) -> str:
    """Return the alternatives as in `a, b or c`."""
    *others, last = alternatives
    return f"{', '.join(others)} or {last}" if others else last


def job_key(key: str, *path: str) -> str:
    """Return the full key of a setting of a job in `TrainingSettings.all_jobs`."""
    return full_key("training", *(() if "." in key else ("jobs",)), key, *path)


def service_key(key: str, *path: str) -> str:
    """Return the full key of a setting of an inference service."""
    return full_key("inference", "services", key, *path)


def describe(error: ValidationError, model: type[BaseModel], section: str) -> list[str]:
    """Return a sentence for each error in a section, with its key, the value and the rule."""
    merged: dict[tuple[str | int, ...], ErrorDetails] = {}
    unions: dict[tuple[str | int, ...], list[str]] = {}
    for number, detail in enumerate(error.errors(include_url=False)):
        location = tuple(part for part in detail["loc"] if part != "[key]")
        if detail["type"] not in _RULES or has_key(model, location):
            merged[(number,)] = detail
            continue
        # The last part of the location is not a key, but a type of the union that the key accepts.
        parent = location[:-1]
        alternatives = unions.setdefault(parent, [])
        alternatives.append(rule(detail).removeprefix("must be " if alternatives else ""))
        merged[parent] = {**detail, "loc": parent, "type": _UNION, "msg": either(alternatives)}
    return [_sentence(detail, model, section) for detail in merged.values()]


def advice_if_removed(key: str) -> str | None:
    """Return the advice for a key that only previous versions supported, or None."""
    for removed, advice in _REMOVED.items():
        if fnmatchcase(key, removed) and removed.count(".") == key.count("."):
            return advice
    return None


def unknown_key(path: Iterable[str | int], known: Iterable[str]) -> str:
    """Return the error message for an unknown key, with the closest match and all known keys."""
    *_, last = path = list(path)
    if advice := advice_if_removed(dotted(path)):
        return f"{full_key(*path)} is no longer supported: {advice}."
    known = sorted(known)
    close = difflib.get_close_matches(str(last), known, n=1)
    advice = f": did you mean {close[0]!r}?" if close else "."
    return f"{full_key(*path)} is not a known key{advice} Known keys: {', '.join(known)}."


def _sentence(detail: ErrorDetails, model: type[BaseModel], section: str) -> str:
    location = tuple(part for part in detail["loc"] if part != "[key]")
    path = (section, *location)
    kind = detail["type"]
    if kind == "extra_forbidden":
        return unknown_key(path, keys(model, location[:-1]))
    if kind == "missing":
        purpose = description(model, location)
        meaning = f": {purpose.removesuffix('.')}" if purpose else ""
        return f"{full_key(*path)} is missing{meaning}."
    requirement = rule(detail)
    here = full_key(*path)
    if kind == "value_error" and isinstance(detail["input"], (dict, list)):
        named = requirement.partition(" ")[0] in keys(model, location)
        return f"{here}{':' if named else ''} {requirement}."
    separator = ", but"
    if kind == "value_error":
        separator = ":" if _WITHOUT_SUBJECT.match(requirement) else ": it"
    return f"{here} is {_format_value(detail['input'])}{separator} {requirement}."


def rule(detail: ErrorDetails) -> str:
    """Return the part of an error message that states what is allowed."""
    kind = detail["type"]
    if kind == _UNION:
        return detail["msg"]
    if kind == "too_long" and isinstance(detail["input"], str):
        kind = "string_too_long"
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    if kind in _RULES:
        return _RULES[kind].format(**detail.get("ctx", {}))
    return detail["msg"][0].lower() + detail["msg"][1:]


def _format_value(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
