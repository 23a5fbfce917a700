"""Valid jobs pass the policy pack, and errors for invalid jobs name the key."""

from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.settings.training.job import TrainingJobSettings
from kube.kinds import KINDS, JobKind
from policies.pod_search import find_pods
from policies.resources import Resource
from tests.infra.examples import good, problems
from tests.infra.jobs import job, mandatory_violations, objects, problems_of
from tests.unicode import ALPHABET

RDMA = {"resource": "rdma/hca", "count": 1, "interface": "ib0", "hca": "mlx5"}
STEP = {"command": ["./step"], "memory": "4Gi"}
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "gpus_per_node": st.integers(1, 16),
    "gpu_resource": st.sampled_from(
        ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "baidu.com/a800_80g_cgpu"]
    ),
    "gpu_product": st.sampled_from(["NVIDIA-A800-SXM4-80GB", "NVIDIA-L4"]),
    "node_gpus": st.just(16),
    "memory": st.sampled_from(["16Gi", "64Gi", "480Gi", "1Ti"]),
    "cpu": st.sampled_from(["250m", "8", "56"]),
    "shm": st.sampled_from(["64Mi", "8Gi"]),
    "priority_class": st.just("training"),
    "datasets": st.none(),
    "env": st.dictionaries(
        st.sampled_from(["LOUD", "MODE"]),
        st.sampled_from(["", "1", "größer", "🦊", "$(RANK)", "a: [b]"]),
    ),
    "env_from": st.just({"HUB": {"secret": "hub", "key": "token"}}),
    "omp_threads": st.integers(1, 64),
    "host_network": st.booleans(),
    "spread": st.just(True),
    "whole_node": st.booleans(),
    "pack": st.fixed_dictionaries(
        {"label": st.just("topology.kubernetes.io/zone"), "required": st.booleans()}
    ),
    "network_topology": st.sampled_from([{"mode": "soft"}, {"mode": "hard", "highest_tier": 2}]),
    "node_selector": st.just({"pool": "train"}),
    "annotations": st.just({"tracer.example.com/inject": "true"}),
    "volumes": st.just(
        {
            "code": {"path": "/code", "config_map": "code"},
            "cache": {"path": "/cache", "scratch": "10Gi"},
            "more": {"path": "/more", "claim": "datasets", "read_only": True},
        }
    ),
    "retries": st.integers(1, 100),
    "grace_seconds": st.integers(0, 3600),
    "on_change": st.sampled_from(["keep", "replace"]),
}
CAPABLE: dict[str, st.SearchStrategy[Any]] = {
    "deadline_seconds": st.integers(1, 10**6),
    "attempt_deadline_seconds": st.integers(1, 10**6),
    "state: suspended": st.just("suspended"),
    "state: stopped": st.just("stopped"),
    "fatal_exit_codes": st.lists(st.integers(1, 255), unique=True, max_size=20),
    "launcher": st.just({"cpu": "2", "memory": "8Gi"}),
    "steps": st.just(
        {
            "prepare": {**STEP, "env": {"PART": "1"}},
            "evaluate": {
                "command": ["./evaluate", "$(inputs.export)", "$(outputs.score)"],
                "gpus": 1,
                "inputs": {"export": "train.export"},
                "outputs": {"score": "number"},
            },
        }
    ),
    "schedule": st.just({"cron": "*/5 1-3 * * 1", "time_zone": "Europe/Berlin"}),
}
NCCL = st.sampled_from(
    [
        {},
        {"nccl": {"network": "tcp", "interface": "eth0", "socket_threads": 4}},
        {"rdma": RDMA},
        {"rdma": RDMA, "nccl": {"network": "infiniband", "service_level": 1}},
        {"rdma": RDMA, "nccl": {"network": "roce", "gid_index": 3, "queue_pairs": 4}},
    ]
)


DEFAULT_GRACE = TrainingJobSettings.model_fields["grace_seconds"].default
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "1Gi", "0", "-1", "a", "A_b", "nvidia.com/gpu", "/..", "1e99", "🦊"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["jobs", "kind", "a", "name", "nodes"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@cache
def success_values(kind: JobKind) -> list[str]:
    """Return the values of `success` that the kind supports."""
    return [end for end in ("all", "first") if not problems_of(job(kind, success=end))]


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Generate a valid job of any kind."""
    kind = draw(st.sampled_from(list(KINDS)))
    capabilities = KINDS[kind].capabilities
    nodes = 1 if "notebook" in capabilities else draw(st.integers(1, 64))
    supported = {
        key.partition(":")[0]: option for key, option in CAPABLE.items() if key in capabilities
    }
    chosen = draw(st.fixed_dictionaries({}, optional={**OPTIONS, **supported}))
    if nodes > 1:
        chosen |= draw(NCCL)
        if "min_nodes" in capabilities:
            chosen |= draw(st.sampled_from([{}, {"min_nodes": draw(st.integers(1, nodes))}]))
    if "hyperparameters" in capabilities and draw(st.booleans()):
        chosen |= {"command": ["python3", "own.py"], "hyperparameters": None}
    if "notebook" in capabilities:
        chosen.pop("priority_class", None)
        chosen.pop("on_change", None)
    if supported_success := success_values(kind):
        chosen |= draw(st.sampled_from([{}, *({"success": value} for value in supported_success)]))
    if deadline := chosen.get("attempt_deadline_seconds"):
        grace = chosen.get("grace_seconds", DEFAULT_GRACE)
        chosen["attempt_deadline_seconds"] = max(deadline, grace)
    if "schedule" in chosen:
        chosen.pop("state", None)
    if "steps" in chosen:
        chosen.pop("state", None)
        if draw(st.booleans()):
            chosen["after"] = ["prepare"]
    return job(kind, nodes=nodes, **chosen)


HYPOTHESIS_SETTINGS = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@HYPOTHESIS_SETTINGS
@given(job_config=jobs())
def test_objects_of_any_valid_job_pass_the_policy_pack(job_config: dict[str, Any]) -> None:
    assert mandatory_violations(job_config) == []


@HYPOTHESIS_SETTINGS
@given(job_config=jobs())
def test_policy_pack_counts_the_requested_gpus(job_config: dict[str, Any]) -> None:
    """The gang requests `nodes` times `gpus_per_node` GPUs; steps request additional ones."""
    resource = job_config.get("gpu_resource", "nvidia.com/gpu")
    found = 0
    for manifest in objects(job_config):
        token = f"kubernetes:{manifest['apiVersion']}:{manifest['kind']}"
        for pod in find_pods(Resource(token, manifest)):
            assert pod.replicas is not None
            gpus = [c.resources["limits"][resource].value or 0 for c in pod.containers]
            found += int(pod.replicas) * sum(int(amount) for amount in gpus)
    steps = sum(step.get("gpus", 0) for step in job_config.get("steps", {}).values())
    assert found == job_config["nodes"] * job_config["gpus_per_node"] + steps


@HYPOTHESIS_SETTINGS
@given(job_config=jobs())
def test_objects_are_reproducible_and_named_after_the_run(job_config: dict[str, Any]) -> None:
    built = objects(job_config)
    assert built == objects(job_config)
    last = "job-schedule" if "schedule" in job_config else "job-0123abcd"
    assert built[-1]["metadata"]["name"] == last
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in built]
    assert len(set(names)) == len(names)


INVALID_SETTINGS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.sampled_from(["nodes", "gpus_per_node", "retries"]), st.integers(max_value=0)),
    st.tuples(
        st.just("kind"), st.text(ALPHABET, max_size=8).filter(lambda text: text not in KINDS)
    ),
    st.tuples(st.sampled_from(["cpu", "memory", "shm"]), st.sampled_from(["", "-1", "8GB", "0"])),
    st.tuples(st.just("min_nodes"), st.integers(max_value=0) | st.integers(min_value=65)),
    st.tuples(st.just("fatal_exit_codes"), st.lists(st.integers(256), min_size=1, max_size=3)),
    st.tuples(st.just("env"), st.just({"1A": ""})),
    st.tuples(st.just("volumes"), st.just({"x": {"path": "relative", "scratch": "1Gi"}})),
    st.tuples(st.just("nccl"), st.just({"network": "ethernet"})),
    st.tuples(st.just("rdma"), st.just({"resource": "rdma/hca", "interface": ""})),
    st.tuples(st.just("steps"), st.just({"prepare": {"command": []}})),
    st.tuples(st.just("after"), st.just(["nothing"])),
    st.tuples(st.just("queue"), st.just("elsewhere")),
    st.tuples(st.just("annotations"), st.just({"volcano.sh/x": ""})),
    st.tuples(st.just("node"), st.just(1)),
)


@HYPOTHESIS_SETTINGS
@given(job_config=jobs(), invalid_setting=INVALID_SETTINGS)
def test_any_invalid_job_is_rejected_with_its_key(
    job_config: dict[str, Any], invalid_setting: tuple[str, Any]
) -> None:
    key, value = invalid_setting
    assert any(
        sentence.startswith("gpu-platform:training.jobs.job") and key in sentence
        for sentence in problems_of({**job_config, key: value})
    )


@HYPOTHESIS_SETTINGS
@given(job_config=jobs(), kind=st.sampled_from(list(KINDS)))
def test_changing_only_the_kind_works_or_reports_unsupported_settings(
    job_config: dict[str, Any], kind: Any
) -> None:
    changed = {**job_config, "kind": kind}
    if found := problems_of(changed):
        assert all("kind" in sentence or "TensorFlow" in sentence for sentence in found)
    else:
        assert mandatory_violations(changed) == []


def paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every value in a configuration."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, (*path, key))
    return found


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(paths(good())), value=JSON)
def test_any_value_at_any_path_is_accepted_or_reported_as_a_problem(
    path: tuple[str, ...], value: Any
) -> None:
    values = good()
    node = values
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert all(sentence.startswith("gpu-platform:") for sentence in problems(values))
