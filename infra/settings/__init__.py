"""Settings of the stack: one model per section, validated together."""

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from infra.settings.checks import check
from infra.settings.cluster import ClusterSettings, GpuSettings
from infra.settings.images import PASSWORD_KEY, ImagesSettings
from infra.settings.inference import InferenceSettings
from infra.settings.monitoring import LogsSettings, MonitoringSettings
from infra.settings.problems import describe, full_key, unknown_key
from infra.settings.storage import StorageSettings
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingSettings
from infra.settings.types import Settings
from infra.settings.volcano import VolcanoSettings


class StackSettings(Settings):
    """Settings of the stack, one model per section."""

    cluster: ClusterSettings
    gpu: GpuSettings = GpuSettings()
    volcano: VolcanoSettings = VolcanoSettings()
    storage: StorageSettings = StorageSettings()
    tenancy: TenancySettings
    images: ImagesSettings = ImagesSettings()
    training: TrainingSettings = TrainingSettings()
    inference: InferenceSettings = InferenceSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    logs: LogsSettings = LogsSettings()

    @property
    def metrics_ports(self) -> tuple[int, ...]:
        """Ports on which workloads serve metrics."""
        training = {job.metrics_port for job in self.training.all_jobs.values()}
        serving = [each.metrics_ports for each in self.inference.services.values()]
        return tuple(sorted(port for port in training.union(*serving) if port is not None))


SECTIONS: Final = cast(
    dict[str, type[BaseModel]],
    {name: field.annotation for name, field in StackSettings.model_fields.items()},
)


class SettingsError(Exception):
    """An invalid configuration; `problems` contains one sentence per error."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"The configuration has {count}; nothing was changed.\n{lines}")


def validate(values: Mapping[str, Any], secrets: frozenset[str] = frozenset()) -> StackSettings:
    """Validate a configuration and return its settings.

    `values` maps sections to configured values, and `secrets` contains the keys whose values are
    encrypted. Raise SettingsError with every problem found.
    """
    problems = [
        unknown_key([key], {*SECTIONS, PASSWORD_KEY})
        for key in values
        if key not in SECTIONS and key != PASSWORD_KEY
    ]
    valid: dict[str, BaseModel] = {}
    for section, model in SECTIONS.items():
        try:
            valid[section] = model.model_validate(values.get(section, {}))
        except ValidationError as error:
            problems += describe(error, model, section)
    problems += [
        _PLAIN_TEXT_ERROR.format(full_key(key)) for key in sorted(secrets & SECTIONS.keys())
    ]
    problems += check(valid)
    if isinstance(images := valid.get("images"), ImagesSettings):
        problems += _password_problems(images, values, secrets)
    if problems:
        raise SettingsError(problems)
    return StackSettings.model_construct(**cast(dict[str, Any], valid))


_PLAIN_TEXT_ERROR: Final = (
    "{} contains a secret, which the stack's state and rendered manifests would store in plain "
    "text: create a Kubernetes Secret, and refer to it in `env_from` or `volumes`."
)


def _password_problems(
    images: ImagesSettings, values: Mapping[str, Any], secrets: frozenset[str]
) -> list[str]:
    key, remedy = full_key(PASSWORD_KEY), f"pulumi config set --secret {PASSWORD_KEY}"
    if images.username is not None and PASSWORD_KEY not in values:
        return [
            f"{key} is missing, but {full_key('images', 'username')} is set to "
            f"{images.username!r}: store the password with `{remedy}`."
        ]
    if PASSWORD_KEY in values and PASSWORD_KEY not in secrets:
        return [f"{key} is stored as plain text: store it again with `{remedy}`."]
    if PASSWORD_KEY in values and images.username is None:
        return [
            f"{key} is set, but {full_key('images', 'username')} is missing: set the user name."
        ]
    return []
