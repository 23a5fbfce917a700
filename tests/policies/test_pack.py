"""The policy pack as started by the engine: a gRPC server that prints its port.

It responds like the SDK's server, but converts each resource only once.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format, struct_pb2
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime import proto
from pulumi.runtime.proto import analyzer_pb2
from pulumi.runtime.proto.analyzer_pb2 import DISABLED, ConfigureAnalyzerRequest
from pulumi.runtime.proto.analyzer_pb2_grpc import AnalyzerStub
from pulumi_policy import EnforcementLevel, deserialize, proxy
from pulumi_policy import policy as sdk

from policies import binding
from policies.binding import Binding
from policies.catalogue import RULES, unique
from policies.pack import NAME, Servicer
from policies.properties import Properties, plain
from tests.policies import manifests
from tests.policies.harness import LIMITS, POD, REMOVED, UNKNOWN_VALUE, Manifest, changed, type_of

PACK = Path(__file__).parents[2] / "policies"


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a pack that runs in a separate process."""
    command = [sys.executable, PACK, "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def test_served_pack_lists_every_rule_and_accepts_a_configuration(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = AnalyzerStub(channel).GetAnalyzerInfo(Empty())
    assert found.name == NAME
    assert {rule.name for rule in RULES} <= {policy.name for policy in found.policies}


def test_pack_rejects_a_configuration_that_disables_every_rule(port: int) -> None:
    entries = {rule.name: analyzer_pb2.PolicyConfig(enforcementLevel=DISABLED) for rule in RULES}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = AnalyzerStub(channel)
        with pytest.raises(grpc.RpcError, match="it disables every rule"):
            stub.Configure(ConfigureAnalyzerRequest(policyConfig=entries))
        entries.popitem()
        stub.Configure(ConfigureAnalyzerRequest(policyConfig=entries))


def test_two_rules_with_the_same_name_are_rejected() -> None:
    with pytest.raises(ValueError, match=f"two rules with the name {RULES[0].name}"):
        unique([*RULES, RULES[0]])


def test_no_module_of_the_pack_shadows_a_standard_library_module() -> None:
    """Tools that run in the directory of the pack would import the pack's module instead."""
    assert not {path.stem for path in PACK.glob("*.py")} & sys.stdlib_module_names


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0)])
def test_pack_started_without_an_engine_prints_its_usage(arguments: list[str], status: int) -> None:
    completed = subprocess.run([sys.executable, PACK, *arguments], capture_output=True, text=True)
    assert completed.returncode == status
    assert "python -m policies.check --help" in completed.stderr


@pytest.fixture
def converted_messages(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of messages that have been converted to plain data."""
    messages: list[Any] = []

    def counting_plain(value: Any) -> Any:
        if isinstance(value, Properties):
            messages.append(value)
        return plain(value)

    monkeypatch.setattr(binding, "plain", counting_plain)
    return messages


def pack_servicer() -> Any:
    bound = Binding()
    listener, policies = bound.configure, bound.policies(RULES)
    return Servicer(listener, "pack", "1", policies, EnforcementLevel.MANDATORY)


def sdk_servicer() -> Any:
    """Return the servicer from the SDK, with the same policies."""
    servicer: Any = sdk._PolicyAnalyzerServicer
    return servicer("pack", "1", Binding().policies(RULES), EnforcementLevel.MANDATORY)


def properties(manifest: Manifest) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(manifest)
    return struct


def request(manifest: Manifest, urn: str = "urn:a") -> proto.AnalyzeRequest:
    return proto.AnalyzeRequest(
        type=type_of(manifest), properties=properties(manifest), urn=urn, name="a"
    )


def bad_job() -> Manifest:
    edits = (f"{LIMITS}/nvidia.com~gpu", "0.5"), (f"{POD}/tolerations", REMOVED)
    return changed(manifests.volcano_job(), *edits)


def test_resource_is_converted_once_for_all_rules(converted_messages: list[Any]) -> None:
    pack_servicer().Analyze(request(bad_job()), None)
    assert len(converted_messages) == 1


def test_stack_is_converted_once_for_all_rules(converted_messages: list[Any]) -> None:
    resources = [
        proto.AnalyzerResource(
            type=type_of(item), properties=properties(item), urn=f"urn:{index}", name="a"
        )
        for index, item in enumerate(manifests.whole_stack())
    ]
    pack_servicer().AnalyzeStack(proto.AnalyzeStackRequest(resources=resources), None)
    assert len(converted_messages) == len(resources)


def test_resource_is_not_converted_again_for_the_stack_rules(converted_messages: list[Any]) -> None:
    servicer, manifest = pack_servicer(), manifests.volcano_job()
    servicer.Analyze(request(manifest), None)
    resource = proto.AnalyzerResource(
        type=type_of(manifest), properties=properties(manifest), urn="urn:a", name="a"
    )
    servicer.AnalyzeStack(proto.AnalyzeStackRequest(resources=[resource]), None)
    assert len(converted_messages) == 1


SPECIAL = "4dabf18193072939515e22adb298388d"
SECRET = {SPECIAL: "1b47061264138c4ac30d75fd1eb44270", "value": {"x": [1.0, UNKNOWN_VALUE]}}
ASSET = {SPECIAL: "c44067f5952c0a294b673a41bacd8c17", "path": "/a"}
STACK = {str(index): item for index, item in enumerate(manifests.whole_stack())}


@pytest.mark.parametrize(
    "values",
    [
        {},
        STACK,
        {"a": [None, True, 0, 1.5, -2.0, "", UNKNOWN_VALUE, {"b": UNKNOWN_VALUE}]},
        {"secret": SECRET, "list": [SECRET]},
    ],
)
def test_plain_data_is_the_same_as_with_the_conversion_of_the_sdk(values: Manifest) -> None:
    struct = properties(values)
    by_sdk = deserialize.deserialize_properties(json_format.MessageToDict(struct))
    proxied = proxy.unknown_checking_proxy(by_sdk)
    assert plain(Properties(struct)) == plain(proxied)


def test_assets_are_not_expanded_as_data() -> None:
    assert isinstance(plain(Properties(properties({"a": ASSET})))["a"], str)


def test_remediation_works_with_lazily_converted_properties(converted_messages: list[Any]) -> None:
    level = proto.PolicyConfig(enforcementLevel=proto.REMEDIATE)
    servicer = pack_servicer()
    config = proto.ConfigureAnalyzerRequest(policyConfig={"gpu-toleration": level})
    servicer.Configure(config, None)
    secret = changed(bad_job(), (f"{POD}/containers/0/env/0/value", SECRET))
    (found,) = servicer.Remediate(request(secret), None).remediations
    repaired = json_format.MessageToDict(found.properties)
    pod = repaired["spec"]["tasks"][0]["template"]["spec"]
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert pod["containers"][0]["env"][0]["value"] == SECRET


def test_response_for_a_resource_is_the_same_as_from_the_sdk_servicer() -> None:
    expected = sdk_servicer().Analyze(request(bad_job()), None)
    assert expected.diagnostics
    assert pack_servicer().Analyze(request(bad_job()), None) == expected


def test_response_for_the_stack_is_the_same_as_from_the_sdk_servicer() -> None:
    resources = [
        proto.AnalyzerResource(
            type=type_of(item), properties=properties(item), urn=f"urn:{index}", name="a"
        )
        for index, item in enumerate([manifests.volcano_job(), manifests.deployment()])
    ]
    stack = proto.AnalyzeStackRequest(resources=resources)
    expected = sdk_servicer().AnalyzeStack(stack, None)
    assert expected.diagnostics
    assert pack_servicer().AnalyzeStack(stack, None) == expected


def test_configured_enforcement_levels_are_applied() -> None:
    levels = {"gpu-counts-whole": proto.ADVISORY, "gpu-toleration": proto.DISABLED}
    config = {name: proto.PolicyConfig(enforcementLevel=level) for name, level in levels.items()}
    request_ = proto.ConfigureAnalyzerRequest(policyConfig=config)
    responses = []
    for servicer in (pack_servicer(), sdk_servicer()):
        servicer.Configure(request_, None)
        responses.append(servicer.Analyze(request(bad_job()), None))
    found = {
        diagnostic.policyName: diagnostic.enforcementLevel
        for diagnostic in responses[0].diagnostics
    }
    assert found["gpu-counts-whole"] == proto.ADVISORY
    assert "gpu-toleration" not in found
    assert responses[0] == responses[1]


def test_servicer_rejects_a_configuration_that_disables_every_rule() -> None:
    disabled = proto.PolicyConfig(enforcementLevel=proto.DISABLED)
    config = {rule.name: disabled for rule in RULES}
    messages: list[str] = []

    class Context:
        def abort(self, code: Any, message: str) -> None:
            messages.append(message)

    pack_servicer().Configure(proto.ConfigureAnalyzerRequest(policyConfig=config), Context())
    assert "disable" in messages[0]


def test_consecutive_resources_are_evaluated_separately(converted_messages: list[Any]) -> None:
    servicer = pack_servicer()
    bad = servicer.Analyze(request(bad_job()), None).diagnostics
    good = servicer.Analyze(request(manifests.volcano_job()), None).diagnostics
    bad_again = servicer.Analyze(request(bad_job()), None).diagnostics
    assert good == []
    assert len(bad) == len(bad_again) > 0
