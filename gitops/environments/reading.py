"""An environment's settings, read from its file without Pulumi and without its secrets."""

from pathlib import Path
from typing import Any

from gitops.secrets import document
from infra.settings import StackSettings, validate
from infra.settings.problems import PROJECT

HIDDEN = "[secret]"
_PREFIX = f"{PROJECT}:"


def values_of(configuration: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The project's keys without prefix, and which of them are secret as a whole."""
    own = {
        key.removeprefix(_PREFIX): value
        for key, value in configuration.items()
        if key.startswith(_PREFIX)
    }
    secrets = frozenset(key for key, value in own.items() if _is_secure(value))
    return {key: _hidden(value) for key, value in own.items()}, secrets


def settings_of(file: Path) -> StackSettings:
    """The settings of a `Pulumi.<stack>.yaml`, with every default filled in.

    Raises GitopsError where the file cannot be read, SettingsError where it is wrong.
    """
    return validate(*values_of(document(file).get("config", {})))


def _is_secure(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"secure"}


def _hidden(value: Any) -> Any:
    if _is_secure(value):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    return [_hidden(item) for item in value] if isinstance(value, list) else value
