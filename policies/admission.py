"""Print the rules of the pack as ValidatingAdmissionPolicies for the API server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml

from kube.accelerators import OTHER_DEVICES
from policies.catalogue import RULES
from policies.cel import Cel, Manifest, literal, pattern
from policies.configuration import Configuration, parse
from policies.rule import ConfigurationError, Rule, RuleConfig
from policies.settings import GpuConfig, SystemConfig

Mode = Literal["audit", "warn", "deny"]
PREFIX: Final = "gpu-platform-"
"""Prefix of the names of all policies and bindings."""
EXCLUDED: Final = ("kube-system",)
"""Namespaces without policies: a control plane that cannot restart its pods cannot be fixed."""
CONTROLLERS: Final = (
    "system:kube-controller-manager",
    *(
        f"system:serviceaccount:kube-system:{name}-controller"
        for name in ("cronjob", "daemon-set", "deployment", "job", "replicaset", "replication")
    ),
    "system:serviceaccount:kube-system:statefulset-controller",
)
"""Users whose ownerReferences are trusted; anybody else can write any owner into a pod."""
_API: Final = "admissionregistration.k8s.io/v1"
_EPILOG = """\
examples:
  python -m policies.admission --config policies.json | kubectl apply --server-side -f -
  python -m policies.admission --config policies.json --mode deny | kubectl diff -f -
  kubectl get --raw /metrics | grep apiserver_validating_admission_policy_check_total

modes:
  audit  nothing is denied; violations are counted in the API server's metrics and written to its
         audit log, if it has one
  warn   as audit, and clients such as kubectl print the violations as warnings
  deny   violations of mandatory rules are denied; those of advisory rules are warnings

Start with audit, correct or exempt what the metrics count, then use deny. Each rule is one policy
with one binding of the same name, gpu-platform-<rule>. Settings, levels and exemptions of the
configuration file are written into the policies: run the command again after each change of the
file. A rule that is disabled there has no policy; delete the policy of a rule that you disable
later:
  kubectl delete validatingadmissionpolicies,validatingadmissionpolicybindings gpu-platform-<rule>

The API server needs no webhook for this, and Kubernetes 1.30 or later. Rules that need more than
one object, such as those about queues, claims and budgets, are not included.
"""


@dataclass(frozen=True)
class Scope:
    """Where policies apply, and which users' ownerReferences they trust."""

    excluded: tuple[str, ...] = EXCLUDED
    controllers: tuple[str, ...] = CONTROLLERS


def manifests(
    configuration: Configuration, mode: Mode, scope: Scope | None = None
) -> list[Manifest]:
    """Return a policy and its binding for each enabled rule that one object decides alone."""
    scope = scope or Scope()
    built = []
    for rule, mandatory, config in configuration.rules:
        if rule.admission is not None:
            exempt = " || ".join(_conditions(rule, config, configuration))
            settings = config.model_dump(mode="json", by_alias=True)
            settings["controllers"] = list(scope.controllers)
            if isinstance(config, GpuConfig):
                settings["otherDevices"] = [*OTHER_DEVICES, *map(str.lower, config.other_devices)]
            built += [
                _policy(rule, rule.admission, settings, exempt),
                _binding(rule, mode, mandatory, scope),
            ]
    return built


def read_configuration(path: str | None) -> Configuration:
    """Read a configuration file of the pack, or return the defaults.

    Raises OSError if there is no such file and ValueError if its content is wrong.
    """
    text = "{}" if path is None else Path(path).read_text("utf-8")
    configuration = parse(text, RULES)
    if configuration.exemptions.refused:
        raise ConfigurationError("; ".join(configuration.exemptions.refused))
    return configuration


def name_of(rule: str) -> str:
    """Return the name of the policy of a rule, and of its binding."""
    return f"{PREFIX}{rule}"


def _policy(rule: Rule[Any], cel: Cel, settings: Manifest, exempt: str) -> Manifest:
    exempt = f"variables.addresses.exists(a, {exempt})" if exempt else "false"
    variables = cel.expressions(settings, exempt)
    message = f": {rule.description} {rule.remediation}"
    return _object(
        "ValidatingAdmissionPolicy",
        rule,
        {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": cel.target.rules()},
            "matchConditions": cel.target.conditions(),
            "variables": [{"name": name, "expression": text} for name, text in variables.items()],
            "validations": [
                {
                    "expression": "variables.exempt || variables.violations.size() == 0",
                    "message": f"{rule.name}{message}",
                    "messageExpression": f"'{rule.name}: ' + variables.violations.join(', ') + "
                    + literal(message),
                    "reason": "Forbidden",
                }
            ],
        },
    )


def _binding(rule: Rule[Any], mode: Mode, mandatory: bool, scope: Scope) -> Manifest:
    action = {"audit": [], "warn": ["Warn"], "deny": ["Deny" if mandatory else "Warn"]}[mode]
    return _object(
        "ValidatingAdmissionPolicyBinding",
        rule,
        {
            "policyName": name_of(rule.name),
            "validationActions": [*action, "Audit"],
            "matchResources": {
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": sorted(scope.excluded),
                        }
                    ]
                }
            },
        },
    )


def _object(kind: str, rule: Rule[Any], spec: Manifest) -> Manifest:
    metadata = {"name": name_of(rule.name), "labels": {"app.kubernetes.io/part-of": "gpu-platform"}}
    return {"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec}


def _conditions(rule: Rule[Any], config: RuleConfig, configuration: Configuration) -> Iterator[str]:
    if isinstance(config, SystemConfig) and config.system_workloads:
        yield f"a.matches({literal(pattern(config.system_workloads))})"
    for exemption in configuration.exemptions.of(rule.name):
        end = f"timestamp('{exemption.expires}T00:00:00Z') + duration('24h')"
        yield (
            f"(a.matches({literal(pattern([exemption.workload]))}) && "
            f"timestamp(object.metadata.creationTimestamp) < {end})"
        )


class _Dumper(yaml.SafeDumper):
    """Writes equal parts again, since readers know no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m policies.admission",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="levels, settings and exemptions, in JSON")
    parser.add_argument(
        "--mode",
        choices=get_args(Mode),
        default="audit",
        help="what a violation does (default: audit)",
    )
    parser.add_argument(
        "--exclude-namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="a namespace without policies, in addition to kube-system; may be repeated",
    )
    options = parser.parse_args(arguments)
    try:
        configuration = read_configuration(options.config)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: the configuration {options.config}: {error}\n")
        return 2
    scope = Scope((*EXCLUDED, *options.exclude_namespace))
    built = manifests(configuration, options.mode, scope)
    sys.stdout.write(yaml.dump_all(built, Dumper=_Dumper, sort_keys=False, width=100))
    return 0


if __name__ == "__main__":
    sys.exit(main())
