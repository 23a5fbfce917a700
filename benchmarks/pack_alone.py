"""The pack's answers without the engine, in processor time: what the rules themselves cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2  # type: ignore[import-untyped]
from pulumi.runtime import proto
from pulumi_policy import EnforcementLevel, Policy, ResourceValidationPolicy
from pulumi_policy import policy as sdk

from benchmarks.workloads import Manifest
from policies.binding import Binding
from policies.catalogue import RULES
from policies.decoding import share_decoding


def microseconds(manifests: Sequence[Manifest]) -> dict[str, float]:
    """Microseconds for each resource and rule; both calls of the engine are counted."""
    requests = [_request(manifest, index) for index, manifest in enumerate(manifests)]
    nothing = ResourceValidationPolicy("nothing", "Nothing.", lambda args, report: None)
    empty = _seconds([nothing], requests, manifests)
    share_decoding()
    binding = Binding()
    ours = _seconds([*binding.policies(RULES), *binding.own_policies()], requests, manifests)
    count = len(manifests)
    return {
        "perResource": sum(ours) / count * 1e6,
        "perResourceEmptyPack": sum(empty) / count * 1e6,
        "perResourceInAnalyze": ours[0] / count * 1e6,
        "perResourceInAnalyzeStack": ours[1] / count * 1e6,
        "perResourceAndRule": (sum(ours) - sum(empty)) / count / len(RULES) * 1e6,
    }


def _seconds(
    policies: list[Policy], requests: list[Any], manifests: Sequence[Manifest]
) -> tuple[float, float]:
    module: Any = sdk
    servicer = module._PolicyAnalyzerServicer("pack", "1", policies, EnforcementLevel.MANDATORY)
    start = time.process_time()
    for request in requests:
        servicer.Analyze(request, None)
    middle = time.process_time()
    resources = [
        proto.AnalyzerResource(
            type=request.type, properties=request.properties, urn=request.urn, name=request.name
        )
        for request in requests
    ]
    request = proto.AnalyzeStackRequest(resources=resources)
    between = time.process_time()
    servicer.AnalyzeStack(request, None)
    return middle - start, time.process_time() - between


def _request(manifest: Manifest, index: int) -> Any:
    version, kind = manifest["apiVersion"], manifest["kind"]
    version = version if "/" in version else f"core/{version}"
    properties = struct_pb2.Struct()
    properties.update(manifest)
    name = f"{index}-{manifest['metadata']['name']}"
    return proto.AnalyzeRequest(
        type=f"kubernetes:{version}:{kind}", properties=properties, urn=f"urn:{name}", name=name
    )
