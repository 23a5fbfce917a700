"""The stack itself under its admission policies, on simulated nodes under real Volcano."""

import json

from tests.cluster.platform import Platform

SETTING = "    namespace: ml-simulated\n"
ADMISSION = "    admission: deny\n    admission_config: policies/config/simulated.json\n"
POLICIES = "validatingadmissionpolicies -l app.kubernetes.io/part-of=gpu-platform"


def configure(platform: Platform, *changes: tuple[str, str]) -> str:
    """Edit the stack's configuration and deploy it."""
    text = platform.stack_file.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    platform.stack_file.write_text(text)
    return platform.make("up")


def test_stack_workloads_run_while_admission_denies_violations(cluster: Platform) -> None:
    configure(cluster, (SETTING, SETTING + ADMISSION))
    output = configure(cluster, ("epochs: 20", "epochs: 21"))
    assert "pods scheduled together" in output
    pods = cluster.pods(cluster.run_name())
    assert len(pods) == 2
    cluster.shell("kubectl rollout restart deployment -n ml-simulated")
    cluster.shell("kubectl rollout status deployment -n ml-simulated --timeout=600s")


def test_a_bad_pod_outside_the_stack_is_denied(cluster: Platform) -> None:
    overrides = json.dumps({"spec": {"hostPID": True}})
    command = f"kubectl run bad --image=busybox:1 --overrides='{overrides}' 2>&1 || true"
    assert "denied request" in cluster.shell(command)


def test_policies_are_deleted_when_admission_is_disabled(cluster: Platform) -> None:
    assert "gpu-platform-pods" in cluster.shell(f"kubectl get {POLICIES}")
    configure(cluster, (ADMISSION, ""))
    assert "gpu-platform-pods" not in cluster.shell(f"kubectl get {POLICIES} 2>&1")
