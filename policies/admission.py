"""Print the rules of the pack as ValidatingAdmissionPolicies for the API server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import yaml

from kube import promoted_models
from kube.accelerators import OTHER_DEVICES
from kube.names import ADMISSION_PREFIX
from policies import output
from policies.catalogue import with_custom_rules
from policies.cel import Manifest, Target, Variables, literal, pattern
from policies.configuration import Configuration
from policies.inputs import UnusableInputError, add_rule_arguments, read_configuration
from policies.kubernetes_yaml import Dumper
from policies.rule import ConfigurationError as ConfigurationError
from policies.rule import Rule, RuleConfig
from policies.settings import GpuConfig, SystemConfig

Mode = Literal["audit", "warn", "deny"]
EXCLUDED: Final = ("kube-system",)
"""Namespaces that are always excluded. If a policy kept control plane pods from restarting, the
cluster could not recover."""
CONTROLLERS: Final = (
    "system:kube-controller-manager",
    *(
        f"system:serviceaccount:kube-system:{name}-controller"
        for name in ("cronjob", "daemon-set", "deployment", "job", "replicaset", "replication")
    ),
    "system:serviceaccount:kube-system:statefulset-controller",
)
"""Users that are trusted to set ownerReferences. Other users could forge the owner of a pod."""
_LABELS: Final = {"app.kubernetes.io/part-of": "gpu-platform"}
_EPILOG = """\
examples:
  python -m policies.admission --config policies.json | kubectl apply --server-side -f -
  python -m policies.admission --config policies.json --mode deny | kubectl diff -f -
  kubectl get --raw /metrics | grep apiserver_validating_admission_policy_check_total

modes:
  audit  nothing is denied; violations are counted in the API server's metrics and written to its
         audit log, if it has one
  warn   like audit, but clients such as kubectl also print the violations as warnings
  deny   requests that violate mandatory rules are denied; violations of advisory rules only
         cause warnings

Start in audit mode. Fix or exempt the violations, then switch to deny mode. Each kind of object has
one policy for mandatory rules, such as gpu-platform-pods, and one for advisory rules, such as
gpu-platform-pods-advisory. Each policy has a binding of the same name. Settings, levels and
exemptions from the configuration file are written into the policies: run the command again after
each change to the file.

To remove all policies:
  kubectl delete validatingadmissionpolicies,validatingadmissionpolicybindings \\
    --selector app.kubernetes.io/part-of=gpu-platform

The policies require Kubernetes 1.30 or later, but no webhook. Rules that need more than one object,
such as those about queues, quotas and budgets, are not included.
"""


@dataclass(frozen=True)
class Scope:
    """Namespaces that the policies exclude, and users that are trusted to set ownerReferences."""

    excluded_namespaces: tuple[str, ...] = EXCLUDED
    controllers: tuple[str, ...] = CONTROLLERS


def manifests(
    configuration: Configuration, mode: Mode, scope: Scope | None = None
) -> list[Manifest]:
    """Return policies and bindings for the enabled rules that need only a single object.

    Rules with the same target share a policy, because the API server converts an object once for
    each policy. Advisory rules have separate policies. Raise `ConfigurationError` if an exemption
    is rejected.
    """
    if configuration.exemptions.rejected:
        raise ConfigurationError("; ".join(configuration.exemptions.rejected))
    scope = scope or Scope()
    policies: dict[str, _Policy] = {}
    for rule, mandatory, config in configuration.rules:
        settings = _settings(config, scope)
        if rule.admission is not None and settings.get(rule.admission.requires, True):
            target = rule.admission.target
            name = f"{ADMISSION_PREFIX}{target.name}{'' if mandatory else '-advisory'}"
            policy = policies.setdefault(name, _Policy(name, target, mandatory))
            exempt = _exempt(rule, config, configuration)
            policy.add(rule, rule.admission.expressions(settings, exempt))
    built = [part for policy in policies.values() for part in policy.manifests(mode, scope)]
    return [
        *(_parameters() if any("paramKind" in each.get("spec", {}) for each in built) else ()),
        *built,
    ]


def _parameters() -> list[Manifest]:
    """Return the ConfigMap for promoted models, its Namespace, and a Role to edit the ConfigMap.

    The ConfigMap is empty, but it must exist: otherwise, the API server would deny all pods.
    """
    common_metadata = {"namespace": promoted_models.NAMESPACE, "labels": dict(_LABELS)}
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [promoted_models.NAME],
        "verbs": ["get", "patch", "update"],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": promoted_models.NAMESPACE, "labels": dict(_LABELS)},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": promoted_models.NAME, **common_metadata},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": promoted_models.PROMOTER, **common_metadata},
            "rules": [rule],
        },
    ]


def from_file(
    path: str | None, mode: Mode, scope: Scope, rules: Sequence[str] = ()
) -> list[Manifest]:
    """Return the policies for a configuration file and files with additional rules.

    Raise `ConfigurationError` if one of the files cannot be read or is invalid.
    """
    try:
        return manifests(read_configuration(path, with_custom_rules(rules)), mode, scope)
    except UnusableInputError as error:
        raise ConfigurationError(str(error)) from error


def _settings(config: RuleConfig, scope: Scope) -> Manifest:
    settings = config.model_dump(mode="json", by_alias=True)
    settings["controllers"] = list(scope.controllers)
    if isinstance(config, GpuConfig):
        settings["otherDevices"] = [*OTHER_DEVICES, *map(str.lower, config.other_devices)]
    return settings


class _Policy:
    """ValidatingAdmissionPolicy with the rules of one target and level, and its binding."""

    def __init__(self, name: str, target: Target, mandatory: bool) -> None:
        self._name, self._target, self._mandatory = name, target, mandatory
        self._variables = Variables()
        self._validations: list[Manifest] = []

    def add(self, rule: Rule[Any], expressions: dict[str, str]) -> None:
        """Add a rule with its CEL expressions."""
        variable = rule.name.replace("-", "_")
        violated = expressions.pop("violations")
        names = self._variables.add({**expressions, variable: violated})
        violations = f"variables.{names[variable]}"
        message = f": {rule.description} {rule.remediation}"
        self._validations.append(
            {
                "expression": f"variables.{names['exempt']} || {violations}.size() == 0",
                "message": f"{rule.name}{message}",
                "messageExpression": f"'{rule.name}: ' + {violations}.join(', ') + "
                + literal(message),
                "reason": "Forbidden",
            }
        )

    def manifests(self, mode: Mode, scope: Scope) -> list[Manifest]:
        """Return the policy and its binding."""
        action = {"audit": [], "warn": ["Warn"], "deny": ["Deny" if self._mandatory else "Warn"]}
        not_excluded = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": sorted(scope.excluded_namespaces),
        }
        parameters: Manifest = {}
        reference: Manifest = {}
        if self._target.parameters is not None:
            parameters = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
            namespace, name = self._target.parameters
            reference = {
                "paramRef": {
                    "namespace": namespace,
                    "name": name,
                    "parameterNotFoundAction": "Deny",
                }
            }
        policy = {
            "failurePolicy": "Fail",
            **parameters,
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": self._target.rules(),
            },
            "matchConditions": self._target.conditions(),
            "variables": self._variables.manifests(),
            "validations": self._validations,
        }
        binding = {
            "policyName": self._name,
            **reference,
            "validationActions": [*action[mode], "Audit"],
            "matchResources": {"namespaceSelector": {"matchExpressions": [not_excluded]}},
        }
        return [self._object("", policy), self._object("Binding", binding)]

    def _object(self, suffix: str, spec: Manifest) -> Manifest:
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"ValidatingAdmissionPolicy{suffix}",
            "metadata": {
                "name": self._name,
                "labels": dict(_LABELS),
            },
            "spec": spec,
        }


def _exempt(rule: Rule[Any], config: RuleConfig, configuration: Configuration) -> str:
    """Return the CEL condition under which an object is exempt from a rule."""
    conditions = []
    if isinstance(config, SystemConfig) and config.system_workloads:
        conditions.append(f"a.matches({literal(pattern(config.system_workloads))})")
    for exemption in configuration.exemptions.for_rule(rule.name):
        end = f"timestamp('{exemption.expires}T00:00:00Z') + duration('24h')"
        conditions.append(
            f"(a.matches({literal(pattern([exemption.workload]))}) && "
            f"timestamp(object.metadata.creationTimestamp) < {end})"
        )
    return f"variables.addresses.exists(a, {' || '.join(conditions)})" if conditions else "false"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m policies.admission",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_rule_arguments(parser)
    parser.add_argument(
        "--mode",
        choices=get_args(Mode),
        default="audit",
        help="effect of a violation (default: audit)",
    )
    parser.add_argument(
        "--exclude-namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="a namespace to exclude, in addition to kube-system; may be repeated",
    )
    parser.add_argument(
        "--trust-user",
        action="append",
        default=[],
        metavar="USER",
        help="a controller that is trusted to set ownerReferences, such as "
        "system:serviceaccount:volcano-system:volcano-controllers, so that exemptions apply to its "
        "pods; may be repeated",
    )
    options = parser.parse_args(arguments)
    try:
        scope = Scope((*EXCLUDED, *options.exclude_namespace), (*CONTROLLERS, *options.trust_user))
        built = from_file(options.config, options.mode, scope, options.rules)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(yaml.dump_all(built, Dumper=Dumper, sort_keys=False, width=100))
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main, failed=2))
