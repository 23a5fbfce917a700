"""The policy pack as started by the engine: a gRPC server that prints its port."""

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
