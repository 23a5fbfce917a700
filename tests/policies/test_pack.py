"""The pack as the engine starts it: a program that serves gRPC and prints its port."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import analyzer_pb2
from pulumi.runtime.proto.analyzer_pb2 import DISABLED, ConfigureAnalyzerRequest
from pulumi.runtime.proto.analyzer_pb2_grpc import AnalyzerStub

from policies.catalogue import RULES, unique
from policies.pack import NAME

PACK = Path(__file__).parents[2] / "policies"


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a pack that is served by a process."""
    command = [sys.executable, PACK, "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def test_the_served_pack_names_every_rule_and_takes_a_configuration(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = AnalyzerStub(channel).GetAnalyzerInfo(Empty(), timeout=60)
    assert found.name == NAME
    assert {rule.name for rule in RULES} <= {policy.name for policy in found.policies}


def test_refuses_a_configuration_that_disables_every_rule(port: int) -> None:
    entries = {rule.name: analyzer_pb2.PolicyConfig(enforcementLevel=DISABLED) for rule in RULES}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = AnalyzerStub(channel)
        with pytest.raises(grpc.RpcError, match="it disables every rule"):
            stub.Configure(ConfigureAnalyzerRequest(policyConfig=entries), timeout=60)
        entries.popitem()
        stub.Configure(ConfigureAnalyzerRequest(policyConfig=entries), timeout=60)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=f"two rules with the name {RULES[0].name}"):
        unique([*RULES, RULES[0]])


def test_no_module_of_the_pack_has_the_name_of_one_of_the_standard_library() -> None:
    """Tools that start the directory itself would import it instead."""
    assert not {path.stem for path in PACK.glob("*.py")} & sys.stdlib_module_names
