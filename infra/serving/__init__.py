"""The objects that serve a model: pure, from a typed description to manifests."""

from infra.serving.description import Serving, Version
from infra.serving.objects import build, build_canary, routes

__all__ = ["Serving", "Version", "build", "build_canary", "routes"]
