"""The admission policies in a separate embedded cluster."""

import shlex
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from kube.promoted_models import NAMESPACE
from policies.admission import CONTROLLERS, Mode, Scope, manifests
from policies.catalogue import RULES
from policies.configuration import Configuration, configure
from policies.resources import Resource
from policies.views import View
from tests.cluster.api_server import ApiServer, Manifest
from tests.cluster.platform import Platform, await_
from tests.policies.harness import type_of
from tools.generate.policy_examples import EXAMPLES
from tools.generate.policy_examples import SETTINGS as EXAMPLE_SETTINGS

SPACE = "default"
SETTINGS = {
    "image-registry-allowed": {
        "allowedRegistries": ["registry.example.com", "127.0.0.1:5000", "docker.io/library"]
    },
    "model-signed": EXAMPLE_SETTINGS["model-signed"],
}
(PROMOTED,) = yaml.safe_load_all(EXAMPLES["model-lineage-complete"].good)
"""The parameter object with the model of the good example of `model-signed`."""
CHANGED_BY_THE_API = {
    # Without the feature gate PodCertificateRequest, the API server drops these volumes.
    "an API client certificate as a volume": {"no-hidden-token", "no-service-account-token"},
    "a certificate accepted by the API server": {"no-hidden-token", "no-service-account-token"},
    # The API server converts quantities to their canonical notation.
    "thousandths": {"gpu-counts-whole"},
    "white space": {"gpu-counts-whole"},
}
"""Violations of a manifest that are absent from the stored object, by fixture."""
UNDECODED = {
    f"{place} {what}": {"no-literal-secrets"}
    for place in ("a variable with", "an argument with")
    for what in (
        *("an encoded token", "an encoded token and its user", "an encoded setting"),
        *("an encoded file", "a token encoded twice", "a token for URLs", "an encoded URL"),
    )
}
"""Pods with a secret in base64, which CEL cannot decode."""
PARTIAL = {
    rule.name
    for rule in RULES
    if rule.admission is not None and rule.admission.partial and rule.name != "no-literal-secrets"
}
"""Rules that the API server evaluates only as far as they depend on a single object."""


class Cluster:
    """An embedded cluster, its API server and the policies in it."""

    _installed = count(1)

    def __init__(self, platform: Platform, api: ApiServer) -> None:
        self.platform, self.api = platform, api

    def install(
        self, mode: Mode, settings: dict[str, Any] = SETTINGS, trusted: tuple[str, ...] = ()
    ) -> Configuration:
        """Replace the policies, wait until the API server uses them, and return their contents."""
        configuration = configure(settings, RULES)
        scope = Scope(controllers=(*CONTROLLERS, *trusted))
        built = manifests(configuration, mode, scope)
        # A deleted policy remains active for a moment, so each probe has a new name.
        probe = f"probe-{next(self._installed)}"
        file = self.platform.checkout / "policies.yaml"
        # A separate field manager applies the parameters, so that applying the object without
        # entries does not remove them. The policies read the parameters when they start, so these
        # come first.
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        file.write_text(yaml.safe_dump_all([space, PROMOTED]))
        self.apply(file, "--field-manager=promoter")
        file.write_text(yaml.safe_dump_all([*built, *denial(probe)]))
        self.apply(file)
        service: Manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": probe}}
        service["spec"] = {"ports": [{"port": 80}]}
        await_(
            lambda: bool(self.api.create(service, SPACE).denied), "the policies to become active"
        )
        return configuration

    def uninstall(self) -> None:
        """Delete the policies."""
        kinds = "validatingadmissionpolicybindings,validatingadmissionpolicies"
        self.platform.shell(f"kubectl delete {kinds} -l app.kubernetes.io/part-of=gpu-platform")

    def apply(self, file: Path, *options: str) -> None:
        command = ["kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(file)]
        command += options
        self.platform.shell(shlex.join(command))


def denial(name: str) -> list[Manifest]:
    """Return a policy that denies the Service with this name, and its binding.

    The API server activates all received policies at once, so a denial by the last one shows that
    all of them are in use.
    """
    version = "admissionregistration.k8s.io/v1"
    metadata = {"name": name, "labels": {"app.kubernetes.io/part-of": "gpu-platform"}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"]}
    validation = {"expression": f"object.metadata.name != '{name}'", "reason": "Forbidden"}
    policy = {
        "matchConstraints": {"resourceRules": [{**rule, "operations": ["CREATE"]}]},
        "validations": [validation],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kind = "ValidatingAdmissionPolicy"
    return [
        {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": policy},
        {"apiVersion": version, "kind": f"{kind}Binding", "metadata": metadata, "spec": binding},
    ]


def violated(manifest: Manifest, configuration: Configuration) -> set[str]:
    """Return the rules with a CEL version whose Python version an object violates."""
    view = View(Resource(type_of(manifest), manifest))
    return {
        rule.name
        for rule, _, config in configuration.rules
        if rule.admission is not None and any(rule.violations(view, config))
    }
