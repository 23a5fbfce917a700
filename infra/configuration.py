"""The stack's configuration. Only this module reads `pulumi.Config`."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

import pulumi
from pulumi.runtime import get_config_env, is_config_secret

from infra.manifests import PULL_SECRET, Manifest
from infra.settings import SECTIONS, SettingsError, StackSettings, validate
from infra.settings.images import PASSWORD_KEY, ImagesSettings
from infra.settings.notices import notices
from infra.settings.problems import PROJECT


@dataclass(frozen=True, kw_only=True)
class RegistryLogin:
    """Credentials for a registry that requires a login."""

    server: str
    username: str
    password: pulumi.Output[str]

    @classmethod
    def of(cls, images: ImagesSettings) -> Self | None:
        """Return the configured credentials, or None if none are configured."""
        if images.registry is None or images.username is None:
            return None
        password = pulumi.Config(PROJECT).require_secret(PASSWORD_KEY)
        return cls(server=images.registry, username=images.username, password=password)

    def serves(self, image: str) -> bool:
        """Return whether an image is in this registry. `image` may be a prefix of an image name."""
        return image.partition("/")[0] == self.server

    def secret(self, namespace: str) -> Manifest:
        """Return the pull secret for the pods in a namespace."""

        def docker_config(password: str) -> str:
            token = base64.b64encode(f"{self.username}:{password}".encode()).decode()
            entry = {"username": self.username, "password": password, "auth": token}
            return json.dumps({"auths": {self.server: entry}})

        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": PULL_SECRET, "namespace": namespace},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": self.password.apply(docker_config)},
        }


def load_settings() -> StackSettings:
    """Read and check the configuration of the current stack, and log warnings about it.

    Raise RunError with all problems found. Pulumi prints a RunError without a traceback.
    """
    config = pulumi.Config(PROJECT)
    prefix = f"{PROJECT}:"
    _reject_misspelled_projects(get_config_env())
    # Unknown keys are errors. pulumi.Config cannot list the keys, so they are taken from the
    # configuration that the engine passes to the program.
    names = {key.removeprefix(prefix) for key in get_config_env() if key.startswith(prefix)}
    values = {
        key: text if key == PASSWORD_KEY else _parse(text)
        for key in sorted(names | {*SECTIONS, PASSWORD_KEY})
        if (text := config.get(key)) is not None
    }
    secrets = frozenset(key for key in values if is_config_secret(config.full_key(key)))
    try:
        settings = validate(values, secrets)
    except SettingsError as error:
        raise pulumi.RunError(str(error)) from None
    for notice in notices(settings):
        pulumi.log.warn(notice)
    return settings


def _reject_misspelled_projects(keys: Iterable[str]) -> None:
    for key in sorted(keys):
        project, _, rest = key.partition(":")
        if project != PROJECT and get_close_matches(project, [PROJECT], cutoff=0.8):
            raise pulumi.RunError(f"{key} belongs to an unknown project: write {PROJECT}:{rest}")


def _parse(text: str) -> Any:
    """Parse a value as JSON, or return it unchanged if it is not JSON."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text
