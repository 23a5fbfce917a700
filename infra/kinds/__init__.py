"""Builders of the job kinds: each module turns a gang into the objects of one kind."""

from collections.abc import Callable
from importlib import import_module

from infra.kinds.gang import Gang
from infra.manifests import Manifest
from kube.kinds import JobKind


def builder(kind: JobKind) -> Callable[[Gang], list[Manifest]]:
    """Return the builder of a kind, `build` in the module of its name; the job comes last."""
    build: Callable[[Gang], list[Manifest]] = import_module(f"{__name__}.{kind}").build
    return build
