"""Rules of the policy pack as ValidatingAdmissionPolicies, which the API server enforces."""

from dataclasses import dataclass
from typing import Final

import pulumi

from infra.component import Component
from infra.manifests import Manifest
from infra.settings import SettingsError
from infra.settings.problems import full_key
from infra.settings.tenancy import TenancySettings
from kube.names import ADMISSION_PREFIX
from policies import admission

_POLICY: Final = "ValidatingAdmissionPolicy"
_BINDING: Final = f"{_POLICY}Binding"


@dataclass(frozen=True, kw_only=True)
class AdmissionArgs:
    """Settings of the workloads' namespace, including the admission settings.

    The policies do not apply in `system_namespaces`, which contain the stack's privileged pods.
    """

    tenancy: TenancySettings
    system_namespaces: tuple[str, ...] = ()


class Admission(Component):
    """Admission policies and bindings for the rules that check one object at a time."""

    def __init__(
        self, name: str, args: AdmissionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Admission", name, opts)
        objects: list[pulumi.Resource] = []
        policies: list[pulumi.Resource] = []
        for manifest in manifests(args):
            kind = manifest["kind"]
            suffix = {_BINDING: "-binding", _POLICY: ""}.get(kind, f"-{kind.lower()}")
            rule = manifest["metadata"]["name"].removeprefix(ADMISSION_PREFIX)
            # Policies depend on the objects that they read. Each binding depends on its policy.
            options = self.options(after=policies[-1:] if kind == _BINDING else objects)
            created = self.create(f"{name}-{rule}{suffix}", manifest, options)
            if kind != _BINDING:
                (policies if kind == _POLICY else objects).append(created)
        self.register_outputs({})


def manifests(args: AdmissionArgs) -> list[Manifest]:
    """Return the objects that the policies need, then each policy followed by its binding.

    The list is empty if admission is off. Raise SettingsError if the pack's configuration file is
    missing or invalid.
    """
    tenancy = args.tenancy
    if tenancy.admission == "off":
        return []
    scope = admission.Scope(
        (*admission.EXCLUDED, *args.system_namespaces, *tenancy.admission_excluded_namespaces)
    )
    try:
        return admission.from_file(tenancy.admission_config, tenancy.admission, scope)
    except admission.ConfigurationError as error:
        key = full_key("tenancy", "admission_config")
        problem = f"{key} is {tenancy.admission_config!r}: {error}. Correct the file or the path."
        raise SettingsError([problem]) from error
