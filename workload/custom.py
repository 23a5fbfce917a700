"""User code that a configuration names as `package.module:name`."""

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from workload.configuration import ConfigurationError

NAME_PATTERN: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def find(label: str, name: str) -> Callable[..., Any]:
    """Import a function or class; `label` names it in errors.

    Raise ConfigurationError if the import fails or the object is not callable.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{label} is not importable: {error}; the directory that contains this module must be "
            "on PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # A script may exit when it is imported.
        raise ConfigurationError(
            f"{label}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ConfigurationError(
            f"{label}: {module_name} has no function or class named {attribute}"
        )
    return found  # type: ignore[no-any-return]
