"""Comparison of the settings of environments, without Pulumi and without decrypting secrets."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gitops.hidden import secrets_in_setting
from gitops.rendered import content_at
from gitops.secrets import HIDDEN, Mask
from gitops.stack_file import document, document_of
from infra.settings import StackSettings, validate
from infra.settings.problems import PROJECT
from infra.settings.schema import description

Steps = tuple[str, ...]
_PREFIX = f"{PROJECT}:"
_MAX_LENGTH = 200
"""Maximum length of a printed value. Image references with a digest are shorter."""


def values_of(configuration: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the project's configuration without key prefixes, and the keys with secret values."""
    values = {
        key.removeprefix(_PREFIX): value
        for key, value in configuration.items()
        if key.startswith(_PREFIX)
    }
    secrets = frozenset(key for key, value in values.items() if _is_secure(value))
    return {key: _hide_encrypted(value) for key, value in values.items()}, secrets


def settings_of(file: Path) -> StackSettings:
    """Return the settings of a `Pulumi.<stack>.yaml`, including all defaults.

    Raises:
        GitopsError: If the file cannot be read.
        SettingsError: If the settings are invalid.
    """
    return validate(*values_of(document(file).get("config", {})))


def changes_since(file: Path, revision: str) -> list[str]:
    """Return the changes to the settings since the merge base with a Git revision.

    Return an empty list if the file did not exist at the merge base.

    Raises:
        GitopsError: If the file cannot be read.
        SettingsError: If the old or the new settings are invalid.
    """
    old = content_at(file, revision)
    if old is None:
        return []
    before = validate(*values_of(document_of(old, f"{file} at {revision}").get("config", {})))
    return [difference.change for difference in differences(before, settings_of(file))]


def _is_secure(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"secure"}


def _hide_encrypted(value: Any) -> Any:
    if _is_secure(value):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _hide_encrypted(item) for key, item in value.items()}
    return [_hide_encrypted(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Difference:
    """A key with different values in two environments. A value is None if the key is missing."""

    path: Steps
    one: str | None
    other: str | None

    @property
    def section(self) -> str:
        """Section of the setting."""
        return self.path[0]

    def between(self, names: tuple[str, str]) -> str:
        """Return a sentence that describes the difference between two environments."""
        setting = f"`{'.'.join(self.path)}`"
        if self.one is None or self.other is None:
            name, value = (names[0], self.one) if self.other is None else (names[1], self.other)
            return f"{setting} is only in {name}{_in_parentheses(value)}."
        meaning = description(StackSettings, self.path)
        explained = f" ({meaning.removesuffix('.')})" if meaning else ""
        return f"{setting}{explained}: {self.one} in {names[0]}, {self.other} in {names[1]}."

    @property
    def change(self) -> str:
        """Description of the change from `one` to `other`."""
        setting = f"`{'.'.join(self.path)}`"
        if self.one is None:
            return f"{setting} is new{_in_parentheses(self.other)}"
        if self.other is None:
            return f"{setting} is removed{_in_parentheses(self.one)}"
        return f"{setting}: {self.one} → {self.other}"


def _in_parentheses(value: str | None) -> str:
    return f" ({value})" if value else ""


def differences(one: StackSettings, other: StackSettings) -> list[Difference]:
    """Return the settings in which two environments differ, including defaults."""
    return list(_compare(one, other, ()))


def _compare(one: Any, other: Any, path: Steps) -> Iterator[Difference]:
    first, second = _entries(one), _entries(other)
    if first is None or second is None:
        if one != other:
            masked, masked_other = (_masked(path, value) for value in (one, other))
            shown, shown_other = _shown(masked), _shown(masked_other)
            if shown == shown_other:  # the values differ only in the truncated part
                shown, shown_other = (_shown(each, None) for each in (masked, masked_other))
            yield Difference(path, shown, shown_other)
        return
    for key in [*first, *(key for key in second if key not in first)]:
        inner = (*path, key)
        if key not in second:
            yield Difference(inner, _brief(_masked(inner, first[key])), None)
        elif key not in first:
            yield Difference(inner, None, _brief(_masked(inner, second[key])))
        else:
            yield from _compare(first[key], second[key], inner)


def _entries(value: Any) -> dict[str, Any] | None:
    """Return the entries of a settings object or a mapping; None for other values."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return value if isinstance(value, dict) else None


def _masked(path: Steps, value: Any) -> Any:
    """Return the value with all literals that look like secrets masked."""
    if isinstance(value, BaseModel):
        fields = value.model_fields_set
        kept = {name: _masked((*path, name), getattr(value, name)) for name in fields}
        return value.model_copy(update=kept)
    if isinstance(value, dict):
        return {key: _masked((*path, str(key)), item) for key, item in value.items()}
    return Mask(secrets_in_setting(path[-1], value)).tree(value)


def _brief(value: Any) -> str:
    """Return a short text for a value.

    For a settings object, it contains the first four scalars. For a mapping, it is empty.
    """
    if isinstance(value, BaseModel):
        written = value.model_dump(exclude_unset=True)
        scalars = [
            f"{key} {_shown(item)}"
            for key, item in written.items()
            if isinstance(item, str | int | float)
        ]
        return ", ".join(scalars[:4])
    return _shown(value) if _entries(value) is None else ""


def _shown(value: Any, maximum: int | None = _MAX_LENGTH) -> str:
    if value is None or value in ([], {}):
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, BaseModel | dict):
        return f"set{_in_parentheses(_brief(value))}"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return ", ".join(_item(item) for item in value)
    text = " ".join(str(value).split())
    return text if maximum is None or len(text) <= maximum else f"{text[: maximum - 1]}…"


def _item(value: Any) -> str:
    written = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
    return (
        " ".join(f"{k}={v}" for k, v in written.items())
        if isinstance(written, dict)
        else str(written)
    )
