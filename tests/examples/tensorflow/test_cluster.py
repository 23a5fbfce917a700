import json

import pytest

from examples.tensorflow.cluster import Worker, read_worker
from workload.configuration import ConfigurationError


def environment(cluster: dict[str, list[str]], role: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


def test_worker_without_a_cluster_specification_is_a_single_worker() -> None:
    assert read_worker({}) == Worker(0, 1)


def test_first_worker_is_the_chief_by_default() -> None:
    hosts = {"worker": ["a:1", "b:1", "c:1"]}
    assert read_worker(environment(hosts, "worker", 0)) == Worker(0, 3)
    assert read_worker(environment(hosts, "worker", 0)).is_chief
    assert not read_worker(environment(hosts, "worker", 2)).is_chief


def test_dedicated_chief_precedes_the_workers() -> None:
    hosts = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    assert read_worker(environment(hosts, "chief", 0)) == Worker(0, 3)
    assert read_worker(environment(hosts, "worker", 1)) == Worker(2, 3)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("{", "not a valid TensorFlow cluster specification"),
        ("[]", "not a valid TensorFlow cluster specification"),
        (environment({"worker": ["a:1"]}, "worker", 1)["TF_CONFIG"], "tasks in the cluster is 1"),
        (environment({"worker": ["a:1"]}, "ps", 0)["TF_CONFIG"], "workers and a chief"),
        (environment({"ps": ["a:1"], "worker": []}, "ps", 0)["TF_CONFIG"], "workers and a chief"),
    ],
)
def test_unusable_cluster_specification_is_reported(text: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        read_worker({"TF_CONFIG": text})
