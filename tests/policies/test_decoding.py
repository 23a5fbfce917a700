"""The conversions that all policies share."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from pulumi.runtime import proto
from pulumi_policy import EnforcementLevel, deserialize, proxy
from pulumi_policy import policy as sdk

from policies.binding import Binding
from policies.catalogue import RULES
from policies.decoding import share_decoding
from policies.properties import Properties, plain
from tests.policies import manifests
from tests.policies.cases import LIMITS, POD
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, Manifest, changed, type_of

SERVICER: Any = sdk._PolicyAnalyzerServicer
PATCHED = ("deserialize_properties", "unknown_checking_proxy", "json_format")
CALLS = (
    *("Analyze", "AnalyzeStack", "Remediate"),
    *("_get_resource_options", "_get_provider_resource"),
)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The messages that were decoded, with shared decoding installed for this test only."""
    messages: list[Any] = []
    convert = Properties.plain

    def counted(self: Properties) -> Any:
        messages.append(self)
        return convert(self)

    monkeypatch.setattr(Properties, "plain", counted)
    for name in PATCHED:
        monkeypatch.setattr(sdk, name, getattr(sdk, name))
    for name in CALLS:
        monkeypatch.setattr(SERVICER, name, getattr(SERVICER, name))
    share_decoding()
    return messages


def servicer() -> Any:
    policies = Binding().policies(RULES)
    return SERVICER("pack", "1", policies, EnforcementLevel.MANDATORY)


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


def test_a_resource_is_decoded_once_for_all_rules(decoded: list[Any]):
    servicer().Analyze(request(bad_job()), None)
    assert len(decoded) == 1


def test_a_stack_is_decoded_once_for_all_rules(decoded: list[Any]):
    resources = [
        proto.AnalyzerResource(
            type=type_of(item), properties=properties(item), urn=f"urn:{index}", name="a"
        )
        for index, item in enumerate(manifests.whole_stack())
    ]
    servicer().AnalyzeStack(proto.AnalyzeStackRequest(resources=resources), None)
    assert len(decoded) == len(resources)


def test_what_was_judged_before_is_not_decoded_again_for_the_stack(decoded: list[Any]):
    judge, manifest = servicer(), manifests.volcano_job()
    judge.Analyze(request(manifest), None)
    resource = proto.AnalyzerResource(
        type=type_of(manifest), properties=properties(manifest), urn="urn:a", name="a"
    )
    judge.AnalyzeStack(proto.AnalyzeStackRequest(resources=[resource]), None)
    assert len(decoded) == 1


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
def test_plain_data_are_the_same_as_by_way_of_the_sdk(values: Manifest):
    struct = properties(values)
    by_sdk = deserialize.deserialize_properties(json_format.MessageToDict(struct))
    proxied = proxy.unknown_checking_proxy(by_sdk)
    assert plain(Properties(struct, lambda: proxied)) == plain(proxied)
    assert dict(Properties(struct, lambda: by_sdk)) == by_sdk
    assert len(Properties(struct, lambda: by_sdk)) == len(by_sdk)


def test_assets_are_no_data():
    assert isinstance(plain(Properties(properties({"a": ASSET}), dict))["a"], str)


def test_a_remediation_works_on_what_was_put_off(decoded: list[Any]):
    level = proto.PolicyConfig(enforcementLevel=proto.REMEDIATE)
    judge = servicer()
    config = proto.ConfigureAnalyzerRequest(policyConfig={"gpu-toleration": level})
    judge.Configure(config, None)
    secret = changed(bad_job(), (f"{POD}/containers/0/env/0/value", SECRET))
    (found,) = judge.Remediate(request(secret), None).remediations
    repaired = json_format.MessageToDict(found.properties)
    pod = repaired["spec"]["tasks"][0]["template"]["spec"]
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert pod["containers"][0]["env"][0]["value"] == SECRET


def test_the_verdict_is_the_same_as_without():
    plain = [found.message for found in servicer().Analyze(request(bad_job()), None).diagnostics]
    assert plain
    with pytest.MonkeyPatch.context() as patch:
        for name in PATCHED:
            patch.setattr(sdk, name, getattr(sdk, name))
        for name in CALLS:
            patch.setattr(SERVICER, name, getattr(SERVICER, name))
        share_decoding()
        shared = servicer().Analyze(request(bad_job()), None).diagnostics
    assert [found.message for found in shared] == plain


def test_one_resource_is_not_taken_for_the_next(decoded: list[Any]):
    judge = servicer()
    bad = judge.Analyze(request(bad_job()), None).diagnostics
    good = judge.Analyze(request(manifests.volcano_job()), None).diagnostics
    again = judge.Analyze(request(bad_job()), None).diagnostics
    assert good == []
    assert len(bad) == len(again) > 0
