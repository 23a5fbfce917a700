"""The handlers of this project, and any of the user's own."""

import importlib
from typing import Final

from inference.engine.handler import Handler
from inference.engine.handlers.classifier import Classifier
from inference.engine.handlers.language import LanguageModel
from inference.engine.handlers.plain import Plain
from workload.manifest import ExportError, Manifest

AUTO: Final = "auto"


def choose_handler(name: str, manifest: Manifest) -> Handler:
    """A handler by its name, `package.module:Class`, or for `auto` the one that fits the export.

    Raises ExportError when there is none.
    """
    if name != AUTO:
        return _own(name)
    if manifest.classes:
        return Classifier()
    return LanguageModel() if manifest.input_dtype == "int64" else Plain()


def _own(name: str) -> Handler:
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        handler = found()
    except Exception as error:
        raise ExportError(
            f"handler {name} cannot be made: {type(error).__name__}: {error}; it must be a class "
            "that is called without arguments, and its folder must be on PYTHONPATH"
        ) from error
    if not isinstance(handler, Handler):
        raise ExportError(
            f"handler {name} gave {type(handler).__name__}: it must be an "
            "inference.engine.handler.Handler"
        )
    return handler
