"""Inference services."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from infra.serving.runtimes.runtime import Runtime
from infra.settings.inference.scaling import (
    RollbackSettings,
)
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.types import RunKey, Settings


class InferenceSettings(Settings):
    """Inference services."""

    services: dict[RunKey, InferenceServiceSettings] = Field(
        default={}, description="Services by key."
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for key in self.services:
            name, _, number = key.rpartition("-")
            owner = self.services.get(name.removesuffix("-canary"))
            if number.isdecimal() and owner is not None and owner.has_groups:
                raise ValueError(
                    f"has a service {key!r}, but the LeaderWorkerSet {name!r} creates a Service "
                    "with the same name for its pods: rename one of the services"
                )
        return self

    @property
    def other_servers(self) -> Mapping[str, Runtime]:
        """Runtimes other than this project's model server, by the name of the service or canary."""
        return {
            name: service.runtime_of({})
            for key, service in self.services.items()
            if service.runtime != "torch"
            for name in (key, *([f"{key}-canary"] if service.canary else []))
        }

    @property
    def rollbacks(self) -> Mapping[str, RollbackSettings]:
        """Rollback limits of the canaries, keyed by service."""
        return {
            key: service.canary.rollback
            for key, service in self.services.items()
            if service.canary is not None and service.canary.rollback is not None
        }

    @property
    def has_groups(self) -> bool:
        """True if a replica of any service has several pods."""
        return any(service.has_groups for service in self.services.values())

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports of all services."""
        return tuple(port for service in self.services.values() for port in service.ports)
