import subprocess

from infra.manifests import Manifest
from tests.infra.jobs import job, kind_of, objects


def spec(**changes: object) -> Manifest:
    found: Manifest = kind_of(job("ray", **changes), "RayJob")["spec"]
    return found


def pods(**changes: object) -> dict[str, Manifest]:
    cluster = spec(**changes)["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    return {"head": cluster["headGroupSpec"]["template"], "workers": workers["template"]}


def test_entrypoint_is_the_command_quoted_for_a_shell() -> None:
    assert spec(command=["python3", "tune.py", "a b"])["entrypoint"] == "python3 tune.py 'a b'"


def test_variable_references_are_translated_for_the_shell() -> None:
    command = ["sh", "-c", 'printf "%s|" "$@"', "-", "--out=$(RUN_DIR)/a b", "$(RUN_DIR)", "$(x y)"]
    completed = subprocess.run(
        ["sh", "-c", spec(command=command)["entrypoint"]],
        env={"RUN_DIR": "/checkpoints/my run"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout == "--out=/checkpoints/my run/a b|/checkpoints/my run|$(x y)|"


def test_head_and_workers_are_one_gang() -> None:
    group, _, found = objects(job("ray", nodes=3))
    (workers,) = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["spec"]["minMember"] == 4
    assert [workers[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [3, 3, 3]
    for template in pods().values():
        annotations = template["metadata"]["annotations"]
        assert annotations["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
        assert template["spec"]["schedulerName"] == "volcano"


def test_only_workers_have_gpus_and_ray_counts_none_on_the_head() -> None:
    limits = {
        role: template["spec"]["containers"][0]["resources"]["limits"]
        for role, template in pods().items()
    }
    assert limits["workers"]["nvidia.com/gpu"] == "4"
    assert "nvidia.com/gpu" not in limits["head"]
    head = spec()["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-gpus"] == "0"


def test_head_declares_rays_ports() -> None:
    listed = pods()["head"]["spec"]["containers"][0]["ports"]
    ports = {port["name"]: port["containerPort"] for port in listed}
    assert ports == {"gcs": 6379, "dashboard": 8265, "client": 10001}


def test_probes_use_http_and_need_no_program_in_the_image() -> None:
    for template in pods().values():
        container = template["spec"]["containers"][0]
        for probe in (container["readinessProbe"], container["livenessProbe"]):
            assert probe["httpGet"] == {"port": 52365, "path": "/api/local_raylet_healthz"}


def test_pod_commands_are_left_to_the_ray_operator() -> None:
    for template in pods().values():
        assert "command" not in template["spec"]["containers"][0]


def test_finished_job_releases_its_gpus_and_failed_job_is_retried() -> None:
    job_spec = spec(retries=2, deadline_seconds=60, state="suspended")
    assert job_spec["shutdownAfterJobFinishes"] is True
    assert job_spec["submissionMode"] == "HTTPMode"
    assert job_spec["backoffLimit"] == 2
    assert job_spec["activeDeadlineSeconds"] == 60
    assert job_spec["suspend"] is True


def test_only_the_operator_and_the_workers_may_connect_to_the_head() -> None:
    policy = kind_of(job("ray"), "NetworkPolicy")["spec"]
    labels = pods()["head"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["podSelector"]["matchLabels"] != pods()["workers"]["metadata"]["labels"]
    operator_rule, worker_rule = policy["ingress"]
    assert operator_rule["ports"] == [{"port": 8265, "protocol": "TCP"}]
    # KubeRay's chart and plain manifests set this label on the operator; Ray pods do not have it.
    operator = {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}
    assert operator_rule["from"] == [{"namespaceSelector": {}, "podSelector": operator}]
    # No other policy admits the workers if the namespace is not isolated.
    (peer,) = worker_rule["from"]
    for each in pods().values():
        assert peer["podSelector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    assert "ports" not in worker_rule


def test_head_is_not_counted_when_workers_are_placed() -> None:
    templates = pods(pack={"label": "topology.kubernetes.io/zone", "required": True})
    affinity = templates["workers"]["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    selected_labels = term["labelSelector"]["matchLabels"].items()
    assert selected_labels <= templates["workers"]["metadata"]["labels"].items()
    assert not selected_labels <= templates["head"]["metadata"]["labels"].items()
    assert "affinity" not in templates["head"]["spec"]
