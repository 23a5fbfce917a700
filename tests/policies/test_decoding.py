"""The conversions that all policies share."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from pulumi.runtime import proto
from pulumi_policy import EnforcementLevel
from pulumi_policy import policy as sdk

from policies.binding import Binding
from policies.catalogue import RULES
from policies.decoding import share_decoding
from tests.policies import manifests
from tests.policies.cases import LIMITS, POD
from tests.policies.harness import REMOVED, Manifest, changed, type_of

SERVICER: Any = sdk._PolicyAnalyzerServicer
PATCHED = ("deserialize_properties", "unknown_checking_proxy", "json_format")
CALLS = ("Analyze", "AnalyzeStack", "Remediate")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The messages that were decoded, with shared decoding installed for this test only."""
    messages: list[Any] = []
    convert = json_format.MessageToDict

    def counted(message: Any) -> Any:
        messages.append(message)
        return convert(message)

    monkeypatch.setattr(json_format, "MessageToDict", counted)
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
