"""Cost of the policy pack: `make bench-policies`.

Previews of a stack with many workloads alternate between no pack, a pack with one empty rule (the
cost of the engine and the SDK), and this project's pack. Other load on the host therefore affects
all three equally. The benchmark then times the pack alone, policies.check with the same manifests,
and pod creation with and without admission policies. It prints the ratios with their spread and
writes all samples to .bench/policies.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from google.protobuf import struct_pb2
from pulumi.runtime import proto
from pulumi_policy import EnforcementLevel, Policy, ResourceValidationPolicy
from pulumi_policy import policy as sdk

from devcluster import lifecycle
from devcluster.environment import PASSPHRASE
from devcluster.lifecycle import Cluster
from devcluster.paths import CHECKOUT, cache_root
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import Toolchain, ensure
from gitops.forecast.sandbox import connect
from policies.admission import manifests
from policies.binding import Binding
from policies.catalogue import RULES
from policies.configuration import configure
from policies.pack import install
from tools.bench.outcome import Goal, conclude, print_line, ratios, spread
from tools.bench.processes import timed
from tools.bench.workloads import Manifest, pod, stack

MAX_RATIO = 1.10
MAX_CHECK_SECONDS = 3.0

PROGRAM = """
import json
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

provider = kubernetes.Provider("rendered", render_yaml_to_directory="rendered")
for manifest in json.loads(Path("manifests.json").read_text()):
    version, kind = manifest["apiVersion"], manifest["kind"]
    version = version if "/" in version else f"core/{version}"
    pulumi.CustomResource(
        f"kubernetes:{version}:{kind}",
        f"{kind.lower()}-{manifest['metadata']['name']}",
        manifest,
        pulumi.ResourceOptions(provider=provider),
    )
"""
EMPTY_PACK = """
import io
import sys

from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy

sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
PolicyPack(
    name="empty",
    policies=[
        ResourceValidationPolicy(
            name="nothing",
            description="Requires nothing.",
            enforcement_level=EnforcementLevel.MANDATORY,
            validate=lambda args, report: None,
        )
    ],
)
"""


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=1000, help="default: 1000")
    parser.add_argument(
        "--repetitions", type=int, default=5, help="repetitions of each preview; default: 5"
    )
    options = parser.parse_args()
    tools = ensure("engine", cache_root(), print_line)
    manifests = stack(options.workloads)
    with tempfile.TemporaryDirectory() as directory:
        samples = _measure(Path(directory), tools, manifests, options.repetitions)
    samples |= measure_admission(options.repetitions)
    alone = microseconds(manifests)
    result = {
        "workloads": options.workloads,
        "resources": len(manifests),
        "seconds": samples,
        "packAloneMicroseconds": alone,
        **_ratios(samples),
    }
    _print(result)
    conclude("policies", result, _goals(result))


def _measure(
    directory: Path, tools: Toolchain, manifests: Sequence[Manifest], repetitions: int
) -> dict[str, list[float]]:
    preview = _project(directory, tools, manifests)
    packs = {"no pack": [], "empty pack": [str(directory / "empty")], "ours": [str(_pack())]}
    samples: dict[str, list[float]] = {name: [] for name in packs}
    preview(packs["ours"])  # reads files and compiles bytecode; not measured
    for turn in range(repetitions):
        for name, pack in packs.items():
            samples[name].append(timed(lambda pack=pack: preview(pack)))  # type: ignore[misc]
            print_line(f"  {turn + 1}/{repetitions} {name}: {samples[name][-1]:.1f} s")
    path = directory / "manifests.yaml"
    path.write_text(yaml.dump_all(manifests, Dumper=yaml.CSafeDumper))
    command = [sys.executable, "-m", "policies.check", str(path)]
    samples["check"] = [timed(lambda: _run(command, CHECKOUT, os.environ)) for _ in range(5)]
    return samples


def _pack() -> Path:
    return CHECKOUT / "policies"


def _project(
    directory: Path, tools: Toolchain, manifests: Sequence[Manifest]
) -> Callable[[list[str]], None]:
    """Return a function that previews the stack with the given policy packs.

    The program exits if the stack violates a pack.
    """
    runtime = {"name": "python", "options": {"virtualenv": str(CHECKOUT / ".venv")}}
    (directory / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "measured", "runtime": runtime}))
    (directory / "__main__.py").write_text(PROGRAM)
    (directory / "manifests.json").write_text(json.dumps(manifests))
    (directory / "empty").mkdir()
    description = {"description": "Nothing", "version": "0.1.0", "runtime": runtime}
    (directory / "empty" / "PulumiPolicy.yaml").write_text(yaml.safe_dump(description))
    (directory / "empty" / "__main__.py").write_text(EMPTY_PACK)
    (directory / "state").mkdir()
    variables = {
        "PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ["HOME"],
        "PULUMI_HOME": str(tools.pulumi_home),
        "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "1",
    }
    quiet = ["--stack", "test", "--non-interactive", "--suppress-outputs"]
    _run(["pulumi", "stack", "init", "test", "--non-interactive"], directory, variables)

    def preview(packs: list[str]) -> None:
        options = [option for pack in packs for option in ("--policy-pack", pack)]
        _run(["pulumi", "preview", *quiet, *options], directory, variables)

    return preview


def _run(command: list[str], directory: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=directory, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def _ratios(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Return the median, minimum and maximum ratios of measurements, paired by round."""

    def compare(first: str, second: str) -> dict[str, float]:
        return spread(ratios(samples[first], samples[second]))

    return {
        "oursToEmpty": compare("ours", "empty pack"),
        "emptyToNone": compare("empty pack", "no pack"),
        "admissionToNone": compare(WITH, WITHOUT),
    }


def _goals(result: dict[str, Any]) -> list[Goal]:
    ratio, check = result["oursToEmpty"]["median"], statistics.median(result["seconds"]["check"])
    return [
        Goal("preview with the pack, relative to an empty pack", ratio, MAX_RATIO, at_most=True),
        Goal("policies.check, seconds", check, MAX_CHECK_SECONDS, at_most=True),
    ]


def _print(result: dict[str, Any]) -> None:
    for name, values in result["seconds"].items():
        median = statistics.median(values)
        print_line(f"{name + ':':29} {median:7.4f} s ({min(values):.4f} to {max(values):.4f})")
    for name in ("emptyToNone", "oursToEmpty", "admissionToNone"):
        found = result[name]
        print_line(
            f"{name}: {found['median']:.3f} ({found['minimum']:.3f} to {found['maximum']:.3f})"
        )
    alone = result["packAloneMicroseconds"]
    print_line(f"pack alone: {alone['perResource']:.0f} µs per resource")
    print_line(
        f"  SDK: {alone['perResourceEmptyPack']:.0f} µs per resource; "
        f"rules: {alone['perResourceAndRule']:.1f} µs per resource and rule"
    )


def microseconds(manifests: Sequence[Manifest]) -> dict[str, float]:
    """Return the CPU time (µs) per resource and per rule in Analyze and AnalyzeStack."""
    requests = [_request(manifest, index) for index, manifest in enumerate(manifests)]
    nothing = ResourceValidationPolicy("nothing", "Nothing.", lambda args, report: None)
    empty = _seconds([nothing], requests, manifests)
    binding = Binding()
    install(binding.configure)
    ours = _seconds(
        [*binding.policies(RULES), *binding.configuration_policies()], requests, manifests
    )
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


WITHOUT, WITH = "pod creation", "pod creation with admission"
_PODS = "/api/v1/namespaces/default/pods"
_POLICY_DELAY = 5
"""Time (s) until the API server enforces new policies."""


def measure_admission(repetitions: int) -> dict[str, list[float]]:
    """Return the median time (s) to create a pod in each round, without and with policies.

    Each round creates its pods one after another in a separate cluster without nodes.
    """
    samples: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    with tempfile.TemporaryDirectory(prefix="admission-") as directory:
        os.environ["GPU_PLATFORM_STATE"] = directory
        try:
            cluster = lifecycle.up(cluster_spec(Kind.SIMULATED, 0), Reporter())
            with connect(cluster.layout.kubeconfig) as client:
                _create_pods(client)  # opens connections and fills caches; not measured
                for turn in range(repetitions):
                    samples[WITHOUT].append(_create_pods(client))
                    with _enforced_policies(cluster):
                        samples[WITH].append(_create_pods(client))
                    medians = [f"{1000 * values[-1]:.1f} ms" for values in samples.values()]
                    print_line(f"  {turn + 1}/{repetitions} without and with policies: {medians}")
        finally:
            lifecycle.down(Kind.SIMULATED, purge=True)
    return samples


def _create_pods(client: httpx.Client) -> float:
    seconds = []
    for number in range(200):
        manifest = pod(f"pod-{number}")
        start = time.perf_counter()
        response = client.post(_PODS, json=manifest)
        seconds.append(time.perf_counter() - start)
        response.raise_for_status()
    client.delete(_PODS, params={"gracePeriodSeconds": 0}).raise_for_status()
    return statistics.median(seconds)


@contextmanager
def _enforced_policies(cluster: Cluster) -> Iterator[None]:
    built = manifests(configure({}, RULES), "deny")
    _kubectl(cluster, ["apply", "--server-side", "--filename=-"], built)
    time.sleep(_POLICY_DELAY)
    yield
    _kubectl(cluster, ["delete", "--filename=-"], built)
    time.sleep(_POLICY_DELAY)


def _kubectl(cluster: Cluster, arguments: Sequence[str], objects: Sequence[Manifest]) -> None:
    command = [*cluster.kubectl, *arguments]
    text = yaml.dump_all(objects, Dumper=yaml.CSafeDumper)
    subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
