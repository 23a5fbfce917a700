import re
from typing import Any

import pulumi
import pytest
import yaml

from devcluster.paths import CHECKOUT
from infra.observability.alerts import rule_groups
from infra.observability.dashboards import dashboards
from infra.settings import validate
from infra.settings.notices import MAX_JOBS, RATE_SECONDS, notices
from tests.infra.conftest import Provision
from tests.infra.examples import changed, good
from tests.infra.jobs import configuration, job

RDMA = {"resource": "rdma/hca", "interface": "eth0"}
TWO_CLASSES = {"batch": {"value": 10}, "training": {"value": 100}}


def notice_texts(values: dict[str, Any]) -> list[str]:
    return list(notices(validate(values)))


def notices_for_job(kind: str = "volcano", **changes: Any) -> list[str]:
    return notice_texts(configuration(job(kind, **changes)))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"cpu": "56", "gpus_per_node": 8, "omp_threads": 7}, None),
        (
            {"cpu": "56", "gpus_per_node": 8, "omp_threads": 5000},
            "set at most 7, or request more CPUs",
        ),
        ({"cpu": "1m", "gpus_per_node": 8}, "less than one core for each of the 8 processes"),
        ({"cpu": "1m", "gpus_per_node": 1}, None),
        ({"cpu": "500m", "gpus_per_node": 1, "omp_threads": 1}, None),
        (
            {"cpu": "500m", "gpus_per_node": 1, "omp_threads": 2},
            "set at most 1, or request more CPUs",
        ),
        ({"grace_seconds": 0}, "no time to save a checkpoint"),
    ],
)
def test_processes_with_too_few_cores_or_no_grace_period_get_a_notice(
    changes: dict[str, Any], advice: str | None
) -> None:
    found = notices_for_job(**changes)
    assert (found == []) is (advice is None), found
    if advice is not None:
        assert advice in found[0]


def notices_for_volcano(**changes: Any) -> list[str]:
    values = good()
    values["volcano"] |= changes
    return notice_texts(values)


@pytest.mark.parametrize("name", ["dev", "simulated", "staging", "prod"])
def test_environments_in_the_repository_cause_no_notices(name: str) -> None:
    config = yaml.safe_load((CHECKOUT / f"Pulumi.{name}.yaml").read_text())["config"]
    assert (
        notice_texts({key.removeprefix("gpu-platform:"): value for key, value in config.items()})
        == []
    )


@pytest.mark.parametrize(
    ("quota", "is_sufficient"),
    [({"memory_limits": "2Ti"}, False), ({"memory_limits": "4Ti"}, True)],
)
def test_quota_too_small_for_gang_and_service_update_gets_a_notice(
    quota: dict[str, Any], is_sufficient: bool
) -> None:
    config = yaml.safe_load((CHECKOUT / "Pulumi.prod.yaml").read_text())["config"]
    values = {key.removeprefix("gpu-platform:"): value for key, value in config.items()}
    values["tenancy"]["quota"] |= quota
    found = notice_texts(values)
    assert (found == []) is is_sufficient
    for text in found:
        assert "gpu-platform:tenancy.quota.memory_limits is 2048Gi, but" in text
        assert "the largest gang, all services and the additional pod" in text


@pytest.mark.parametrize(
    ("binding", "nodes", "expected"),
    [("WaitForFirstConsumer", 2, 1), ("WaitForFirstConsumer", 1, 0), ("Immediate", 2, 0)],
)
def test_gang_with_a_wait_for_first_consumer_claim_gets_a_notice(
    binding: str, nodes: int, expected: int
) -> None:
    values = good()
    shared = {"kind": "other", "provisioner": "files.example.com", "binding": binding}
    values["storage"]["classes"] = {"shared": shared}
    values["storage"]["claims"]["checkpoints"] = {
        "size": "1Gi",
        "storage_class": "shared",
        "access_modes": ["ReadWriteMany"],
    }
    values["training"]["jobs"]["digits"]["nodes"] = nodes
    found = [text for text in notice_texts(values) if "'checkpoints'" in text]
    assert len(found) == expected
    assert all("gpu-platform:storage.classes.shared.binding to Immediate" in text for text in found)


@pytest.mark.parametrize(
    ("label", "monitoring", "expected"),
    [
        ("cloud.google.com/gke-accelerator", {}, 1),
        ("nvidia.com/gpu.present", {}, 0),
        ("cloud.google.com/gke-accelerator", {"dcgm_exporter": {"gke": True}}, 0),
        ("cloud.google.com/gke-accelerator", {"dcgm_exporter": {"install": False}}, 0),
        ("cloud.google.com/gke-accelerator", {"prometheus": "none"}, 0),
    ],
)
def test_exporter_that_would_see_no_gpus_on_gke_gets_a_notice(
    label: str, monitoring: dict[str, Any], expected: int
) -> None:
    values = good()
    values["gpu"] = {"provider": "existing", "node_selector": {label: "a"}}
    values["monitoring"] = {"prometheus": "operator", **monitoring}
    found = [text for text in notice_texts(values) if "DCGM" in text]
    assert len(found) == expected
    assert all("gpu-platform:monitoring.dcgm_exporter.gke to true" in text for text in found)


@pytest.mark.parametrize(("mode", "expected"), [("off", 2), ("audit", 0)])
def test_admission_settings_without_effect_get_a_notice(mode: str, expected: int) -> None:
    values = good()
    values["tenancy"] |= {
        "admission": mode,
        "admission_config": "policies/config/prod.json",
        "admission_excluded_namespaces": ["monitoring"],
    }
    found = [
        text for text in notice_texts(values) if "gpu-platform:tenancy.admission is off" in text
    ]
    assert len(found) == expected


@pytest.mark.parametrize(("jobs", "expected"), [(0, 0), (MAX_JOBS, 0), (MAX_JOBS + 1, 1)])
def test_stack_with_too_many_jobs_gets_a_notice(jobs: int, expected: int) -> None:
    values = good()
    values["inference"] = {}
    job_config = values["training"]["jobs"]["digits"]
    values["training"]["jobs"] = {f"digits{number}": job_config for number in range(jobs)}
    found = notice_texts(values)
    assert len(found) == expected
    assert all(f"{jobs} jobs" in text and "docs/scale.md" in text for text in found)


def test_rdma_without_a_network_for_nccl_gets_a_notice() -> None:
    (found,) = notices_for_job(rdma=RDMA)
    assert found.startswith("gpu-platform:training.jobs.job.rdma")
    assert "docs/rdma.md" in found


@pytest.mark.parametrize(
    "changes",
    [
        {"rdma": RDMA, "nccl": {"network": "infiniband"}},
        {"rdma": RDMA, "env": {"NCCL_NET": "IB"}},
        {"rdma": {**RDMA, "resource": "vpc.amazonaws.com/efa"}},
        {},
    ],
)
def test_rdma_with_a_configured_network_or_plugin_causes_no_notice(changes: dict[str, Any]) -> None:
    assert notices_for_job(**changes) == []


@pytest.mark.parametrize("kind", ["mpi", "tensorflow", "ray"])
def test_kind_that_the_default_image_does_not_support_gets_a_notice(kind: str) -> None:
    (found,) = notices_for_job(kind)
    assert "gpu-platform:training.jobs.job.image" in found
    assert notices_for_job(kind, image=kind) == []


def test_priorities_without_preemption_get_a_notice() -> None:
    (found,) = notices_for_volcano(priority_classes=TWO_CLASSES)
    assert found.startswith("gpu-platform:volcano.scheduler.preempt")
    assert "'training' are scheduled before jobs of class 'batch'" in found


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler": {"preempt": "none"}},
        {"scheduler": {"preempt": "gangs"}},
        {"install": False},
        {"priority_classes": {**TWO_CLASSES, "training": {"value": 100, "preemption": "Never"}}},
        {"priority_classes": {**TWO_CLASSES, "training": {"value": 10}}},
    ],
)
def test_priorities_with_intended_preemption_cause_no_notice(changes: dict[str, Any]) -> None:
    assert notices_for_volcano(**{"priority_classes": TWO_CLASSES, **changes}) == []


def test_priority_class_used_only_by_services_causes_no_notice() -> None:
    values = changed("inference.services.digits.priority_class", "batch")
    values["volcano"]["priority_classes"] = TWO_CLASSES
    assert notice_texts(values) == []


def test_jobs_without_a_metrics_port_get_a_notice() -> None:
    values = monitored(
        first=job_with_program(),
        measured=job_with_program(metrics_port=9400),
        second=job_with_program(),
    )
    (text,) = notice_texts(values)
    assert "training.jobs: first, second." in text
    assert "set metrics_port" in text
    assert notice_texts({**values, "monitoring": {"prometheus": "none"}}) == []


def test_jobs_that_cannot_have_a_metrics_port_get_no_notice() -> None:
    custom = {**job_with_program(), "hyperparameters": None, "command": ["true"]}
    tensorflow = {**job_with_program(), "kind": "tensorflow", "image": "training"}
    assert notice_texts(monitored(custom=custom, tensorflow=tensorflow)) == []


def job_with_program(**more: Any) -> dict[str, Any]:
    program = {"model": "digits-net", "dataset": "digits", **more}
    return {**good()["training"]["jobs"]["digits"], "hyperparameters": program}


def monitored(**jobs: dict[str, Any]) -> dict[str, Any]:
    found = {k: {f: v for f, v in job.items() if v is not None} for k, job in jobs.items()}
    return {
        **good(),
        "inference": {},
        "training": {"jobs": found},
        "monitoring": {"prometheus": "plain"},
    }


def test_program_logs_notices_as_warnings(
    provision: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warnings.append)
    provision(changed("volcano.priority_classes", TWO_CLASSES), rerun=True)
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("changes", "modes", "warned"),
    [
        ({}, ["ReadWriteOnce"], True),
        ({}, ["ReadWriteOncePod"], True),
        ({}, ["ReadWriteOnce", "ReadOnlyMany"], False),
        ({"rollout": {"surge": 0}}, ["ReadWriteOnce"], False),
        ({"rollout": {"recreate": True}}, ["ReadWriteOnce"], False),
    ],
)
def test_update_that_mounts_a_claim_twice_gets_a_notice(
    changes: dict[str, Any], modes: list[str], warned: bool
) -> None:
    values = good()
    values["storage"]["claims"]["models"] = {
        "size": "1Gi", "storage_class": "shared", "access_modes": modes,
    }  # fmt: skip
    source = {"claim": {"name": "models"}}
    values["inference"]["services"] = {
        "digits": {"cpu": "500m", "memory": "2Gi", "source": source, **changes}
    }
    found = [
        each for each in notice_texts(values) if "mount claim 'models' during an update" in each
    ]
    assert bool(found) is warned
    assert all(each.startswith("gpu-platform:inference.services.digits.rollout.") for each in found)


@pytest.mark.parametrize(
    ("prometheus", "seconds", "warned"),
    [("operator", 150, False), ("operator", 151, True), ("none", 151, False)],
)
def test_scrape_interval_too_long_for_rates_gets_a_notice(
    prometheus: str, seconds: int, warned: bool
) -> None:
    values = good()
    values["monitoring"] = {"prometheus": prometheus, "interval_seconds": seconds}
    found = [each for each in notice_texts(values) if "monitoring.interval_seconds" in each]
    assert len(found) == warned
    assert all("set at most 150" in each for each in found)


def test_rate_period_in_queries_matches_the_notice() -> None:
    settings = validate(changed("monitoring", {"prometheus": "operator"})).monitoring
    queries = str([rule_groups(settings), dashboards(settings)])
    assert set(re.findall(r"rate\(.+?\[(\d+m)\]", queries)) == {f"{RATE_SECONDS // 60}m"}


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"startup_seconds": 1800, "progress_deadline_seconds": 1805}, True),
        ({"startup_seconds": 1800, "progress_deadline_seconds": 1806}, False),
        ({"startup_seconds": 1800}, False),
        ({"progress_deadline_seconds": 90}, False),
    ],
)
def test_progress_deadline_shorter_than_startup_gets_a_notice(
    changes: dict[str, int], warned: bool
) -> None:
    values = good()
    values["inference"]["services"]["digits"] |= changes
    found = notice_texts(values)
    assert len(found) == warned
    for text in found:
        assert "services.digits.progress_deadline_seconds is 1805, but startup_seconds" in text
        assert "remove progress_deadline_seconds, or set it to more than 1805" in text


VLLM = {
    "runtime": "vllm",
    "source": {"claim": {"name": "checkpoints"}},
    "gpus": 1,
    "cpu": 4,
    "memory": "16Gi",
}
KEDA = {"prometheus": "http://prometheus.monitoring:9090"}
ROLLBACK = {
    "route": {"gateway": {"name": "public", "namespace": "gateways"}},
    "canary": {"weight": 20, "server": {"max_model_len": 8192}, "rollback": KEDA},
}


@pytest.mark.parametrize(
    ("prometheus", "service", "expected"),
    [
        (
            "none",
            {"autoscaling": {"max": 2, "requests_in_flight": 8}},
            "autoscaling.requests_in_flight is 8, but",
        ),
        ("plain", {"autoscaling": {"max": 2, "requests_in_flight": 8}}, None),
        ("none", {"autoscaling": {"max": 2, "requests_in_flight": 8, "keda": KEDA}}, None),
        ("none", {"autoscaling": {"max": 2}}, None),
        ("none", ROLLBACK, "canary.rollback is set, but"),
        ("plain", ROLLBACK, None),
    ],
)
def test_missing_recording_rules_get_a_notice(
    prometheus: str, service: dict[str, Any], expected: str | None
) -> None:
    values = good()
    values["monitoring"] = {"prometheus": prometheus}
    values["images"]["workloads"]["recorder"] = values["images"]["workloads"]["inference"]
    values["inference"]["services"]["chat"] = {**VLLM, **service}
    found = [text for text in notice_texts(values) if "services.chat." in text]
    assert len(found) == (expected is not None)
    for text in found:
        assert text.startswith(f"gpu-platform:inference.services.chat.{expected}")
        assert "set gpu-platform:monitoring.prometheus to operator or plain, or" in text


def test_model_server_needs_no_recording_rules() -> None:
    scaling = {"max": 2, "requests_in_flight": 8}
    assert notice_texts(changed("inference.services.digits.autoscaling", scaling)) == []
