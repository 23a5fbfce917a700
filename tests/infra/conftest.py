"""Fixtures that run the complete program with a mocked Pulumi engine."""

import asyncio
import json
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks, set_mocks
from pulumi.runtime.proto import resource_pb2
from pulumi.runtime.proto.source_pb2 import StackTrace

# One loop for all programs, which is never closed: the SDK's mocks create loops in worker threads
# and never close them, which raises warnings when the threads end.
LOOP = asyncio.new_event_loop()
PROGRAM = Path(__file__).parent.parent.parent / "__main__.py"


class Engine(Mocks):
    """Mocked engine that returns a resource's inputs, and a digest for pushed images."""

    uid = "0a1b2c3d"
    """UID of the cluster."""

    def __init__(self, recorded: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.recorded = recorded or {}
        """Outputs of the previous update."""

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        computed = {}
        if args.typ == "docker:index/image:Image":
            name = args.inputs["imageName"].rpartition(":")[0]
            computed = {"repoDigest": f"{name}@sha256:{'5' * 64}"}
        if args.typ == "pulumi:pulumi:StackReference":
            computed = {"outputs": self.recorded}
        if args.inputs.get("metadata") is None and args.name.endswith("kube-system"):
            computed = {"metadata": {"uid": self.uid}}
        return f"{args.name}-id", {**args.inputs, **computed}

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], None]:
        return {}, None


class Monitor(MockMonitor):
    """Mocked monitor that records the complete registration requests."""

    def __init__(self) -> None:
        super().__init__(Engine())
        self.requests: list[resource_pb2.RegisterResourceRequest] = []

    def RegisterResource(self, request: resource_pb2.RegisterResourceRequest) -> Any:  # noqa: N802
        # The SDK registers the stack in the background, possibly while the program runs.
        if request.type != "pulumi:pulumi:Stack":
            self.requests.append(request)
        return super().RegisterResource(request)


@dataclass
class Plan:
    """The resources that the program registered, by name."""

    resources: dict[str, resource_pb2.RegisterResourceRequest] = field(default_factory=dict)

    def __getitem__(self, name: str) -> resource_pb2.RegisterResourceRequest:
        return self.resources[name]

    def inputs(self, name: str) -> Any:
        """Return the inputs of a resource with secrets unwrapped."""
        return _open(rpc.deserialize_properties(self.resources[name].object))

    def names(self, kind: str) -> list[str]:
        """Return the names of the resources of a type."""
        return [name for name, request in self.resources.items() if request.type == kind]

    def dependencies(self, name: str) -> set[str]:
        """Return the names of the resources that a resource depends on."""
        return {urn.rpartition("::")[2] for urn in self.resources[name].dependencies}


def _open(value: Any) -> Any:
    if rpc.is_rpc_secret(value):
        return _open(rpc.unwrap_rpc_secret(value))
    if isinstance(value, dict):
        return {key: _open(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_open(item) for item in value]
    return value


Provision = Callable[..., Plan]
_PLANS: dict[tuple[str, tuple[str, ...]], Plan] = {}
"""Plans cached by configuration; tests must not modify them."""


@pytest.fixture(autouse=True)
def end_preview() -> Iterator[None]:
    """After a test that runs a preview, make programs run as in an update again."""
    yield
    if pulumi.runtime.is_dry_run():
        set_mocks(Engine(), project="gpu-platform", stack="test")


@pytest.fixture
def provision(monkeypatch: pytest.MonkeyPatch) -> Provision:
    """Run the program with a configuration and return the registered resources.

    A repeated configuration returns the cached plan, unless `again` is true.
    """
    # Other tests may leave the thread without an event loop.
    asyncio.set_event_loop(LOOP)
    # The SDK records the whole call stack for each resource; skipping it saves 20% of the time.
    monkeypatch.setattr("pulumi.runtime.resource._get_stack_trace", StackTrace, raising=False)

    def run(values: dict[str, Any], secrets: tuple[str, ...] = (), *, rerun: bool = False) -> Plan:
        texts = {
            f"gpu-platform:{key}": value if isinstance(value, str) else json.dumps(value)
            for key, value in values.items()
        }
        encoded = json.dumps(texts)
        monkeypatch.setenv("PULUMI_CONFIG", encoded)
        pulumi.runtime.set_all_config(texts, [f"gpu-platform:{key}" for key in secrets])
        cached = _PLANS.get((encoded, secrets))
        if cached is not None and not rerun:
            return cached
        monitor = Monitor()
        set_mocks(Engine(), project="gpu-platform", stack="test", monitor=monitor)

        @pulumi.runtime.test
        def program() -> None:
            runpy.run_path(str(PROGRAM))

        program()
        plan = Plan({request.name: request for request in monitor.requests})
        _PLANS[encoded, secrets] = plan
        return plan

    return run
