"""Which path is answered by what."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from inference.http.exchange import Exchange, HttpError, Response
from inference.service import Service


class Target(NamedTuple):
    """The model that a path names; None where it names none."""

    model: str | None = None
    version: str | None = None


Handler = Callable[[Service, Exchange, Target], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, and under which protocol its requests are counted; empty: they are not."""

    handler: Handler
    counted: str = ""
    open: bool = False
    """Whether it is answered without an API key."""
    bounded: bool = False
    """Whether it is refused unread when too many are being answered."""


Methods = Mapping[str, Route]
_NO_TARGET: Final = Target()


class Router:
    """Paths of the server, of its model, and of the model's repository.

    `plain` are whole paths; `model` and `repository` what follows the model's name.
    """

    def __init__(
        self,
        plain: Mapping[str, Methods],
        model: Mapping[str, Methods],
        repository: Mapping[str, Methods],
        name: str,
    ) -> None:
        self._model, self._repository = model, repository
        # Most requests find their path here as it is.
        self._known = {path: (methods, _NO_TARGET) for path, methods in plain.items()}
        for action, methods in model.items():
            self._known[f"/v2/models/{name}{action}"] = (methods, Target(name))

    def find(self, method: str, path: str) -> tuple[Route, Target]:
        """What answers. Raises HttpError 404 or 405."""
        methods, target = self._known.get(path) or self._parse(path)
        route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if route is None:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            raise HttpError(405, f"this path takes {allowed}", (("allow", allowed),))
        return route, target

    def _parse(self, path: str) -> tuple[Methods, Target]:
        match path.split("/"):
            case ["", "v2", "models", name, "versions", version, *rest] if name and version:
                found = self._model.get("".join(f"/{part}" for part in rest))
                target = Target(name, version)
            case ["", "v2", "models", name, *rest] if name:
                found = self._model.get("".join(f"/{part}" for part in rest))
                target = Target(name)
            case ["", "v2", "repository", "models", name, *rest] if name:
                found = self._repository.get("".join(f"/{part}" for part in rest))
                target = Target(name)
            case _:
                found, target = None, _NO_TARGET
        if found is None:
            raise HttpError(404, "there is nothing here: /openapi.json lists the paths")
        return found, target
