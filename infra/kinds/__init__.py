"""Builders for the job kinds: each module turns a gang into the manifests of one kind."""

from collections.abc import Callable
from importlib import import_module

from infra.kinds.gang import Gang
from infra.manifests import Manifest
from kube.kinds import JobKind


def builder(kind: JobKind) -> Callable[[Gang], list[Manifest]]:
    """Return the function `build` of a kind's module.

    The last manifest that `build` returns is the job, the JobFlow that starts it, or, for a stopped
    run, the Command that terminates it.
    """
    build: Callable[[Gang], list[Manifest]] = import_module(f"{__name__}.{kind}").build
    return build
