from infra.manifests import Manifest
from tests.infra.jobs import job, kind_of


def spec(**changes: object) -> Manifest:
    found: Manifest = kind_of(job("tensorflow", **changes), "Job")["spec"]
    return found


def test_all_pods_are_workers_and_the_plugin_lists_them() -> None:
    job_spec = spec(nodes=3)
    (task,) = job_spec["tasks"]
    assert (task["name"], task["replicas"], job_spec["minAvailable"]) == ("worker", 3, 3)
    assert job_spec["plugins"]["tensorflow"] == ["--worker=worker", "--port=2222"]


def test_one_process_per_pod_uses_all_its_gpus() -> None:
    (container,) = spec()["tasks"][0]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python3", "-m", "examples.tensorflow"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_a_single_pod_needs_no_plugin() -> None:
    assert "plugins" not in spec(nodes=1)
