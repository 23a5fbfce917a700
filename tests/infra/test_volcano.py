import asyncio
from collections.abc import Collection
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime.mocks import MockResourceArgs, set_mocks
from pulumi.runtime.rpc import contains_unknowns

from devcluster.paths import CHECKOUT
from infra.outputs import SharedResources
from infra.settings import validate
from infra.settings.volcano import (
    PriorityClassSettings,
    QueueSettings,
    SchedulerSettings,
    VolcanoSettings,
)
from infra.training_job import TrainingJobs, training_jobs
from infra.volcano import (
    Volcano,
    VolcanoArgs,
    chart_values,
    network_policy,
    parents_first,
    priority_class,
    queue,
    retry_queue,
    scheduler_configuration,
)
from tests.infra import jobs
from tests.infra.conftest import LOOP, Engine
from tests.infra.examples import TRAINING_IMAGE, changed


def test_queue_specification_contains_only_configured_fields() -> None:
    assert queue("research", QueueSettings())["spec"] == {"weight": 1, "reclaimable": True}


def test_isolated_volcano_admits_only_webhooks_and_prometheus() -> None:
    settings = VolcanoSettings(namespace="scheduling")
    args = VolcanoArgs(volcano=settings, isolated=True, scraped_from=["monitoring"])
    policy = network_policy(args)
    assert policy["metadata"]["namespace"] == "scheduling"
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert {f"volcano-{name}" for name in ("admission", "controller", "scheduler")} == {
        *expression["values"]
    }
    # Egress is not limited: controllers need the API server, whose address is unknown.
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    webhooks, prometheus = policy["spec"]["ingress"]
    assert webhooks == {"ports": [{"port": 8443, "protocol": "TCP"}]}
    assert [port["port"] for port in prometheus["ports"]] == [8080, 8081]
    (source,) = prometheus["from"]
    (expression,) = source["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["monitoring"]
    unscraped = network_policy(VolcanoArgs(volcano=settings, isolated=True))
    assert unscraped["spec"]["ingress"] == [webhooks]


def test_pulumi_waits_until_a_queue_has_a_state() -> None:
    # Volcano's webhook rejects jobs until their queue is open, shortly after its creation.
    annotations = queue("research", QueueSettings())["metadata"]["annotations"]
    assert annotations == {
        "pulumi.com/waitFor": "jsonpath={.status.state}",
        "pulumi.com/timeoutSeconds": "120",
    }


WEBHOOK_FAILED = 'failed to create: Internal error occurred: failed calling webhook "validatequeue"'

HAS_CHILDREN = "denied the request: queue team can not be deleted because it has 1 child queues: a"


def failed(*errors: str) -> pulumi.ErrorHookArgs:
    return pulumi.ErrorHookArgs(urn="urn", id="", name="queue-research", type="", errors=[*errors])


@pytest.mark.parametrize(
    ("errors", "retried"),
    [
        ([f"{WEBHOOK_FAILED}: connection refused"], True),
        ([WEBHOOK_FAILED] * 7, True),
        ([WEBHOOK_FAILED] * 8, False),
        ([HAS_CHILDREN] * 3, True),
        ([HAS_CHILDREN] * 4, False),
        (['denied the request: failed to get parent queue of queue a: "team" not found'], True),
        (['admission webhook "validatequeue" denied the request: weight', WEBHOOK_FAILED], False),
        (["the server could not find the requested resource"], False),
    ],
)
async def test_queue_is_retried_while_the_webhook_is_unavailable_or_outdated(
    errors: list[str], retried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    assert await retry_queue(failed(*errors)) is retried
    assert bool(pauses) is retried


async def test_warning_for_a_queue_without_a_state_names_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("pulumi.log.warn", warnings.append)
    error = "'research' timed out waiting to be Ready"
    assert not await retry_queue(failed(error))
    assert "queue-research" in warnings[0]
    assert "volcano-controller" in warnings[0]


def test_queue_specification_contains_shares_and_limits() -> None:
    settings = QueueSettings.model_validate(
        {
            "weight": 3,
            "reclaimable": False,
            "capability": {"nvidia.com/gpu": 16},
            "deserved": {"nvidia.com/gpu": 8},
            "guarantee": {"nvidia.com/gpu": 4},
            "parent": "root",
            "priority": 5,
        }
    )
    assert queue("research", settings)["spec"] == {
        "weight": 3,
        "reclaimable": False,
        "capability": {"nvidia.com/gpu": "16"},
        "deserved": {"nvidia.com/gpu": "8"},
        "guarantee": {"resource": {"nvidia.com/gpu": "4"}},
        "parent": "root",
        "priority": 5,
    }


def test_queue_deserves_at_least_its_guarantee() -> None:
    settings = QueueSettings.model_validate({"guarantee": {"nvidia.com/gpu": 8}})
    # Volcano 1.14's webhook rejects a queue that deserves less than its guarantee.
    assert queue("team", settings)["spec"]["deserved"] == {"nvidia.com/gpu": "8"}


def test_network_topology_plugin_is_omitted_for_older_releases() -> None:
    text = scheduler_configuration(SchedulerSettings(), hierarchical=False, topology=False)
    assert "network-topology-aware" not in text


def test_queues_are_created_after_their_parents() -> None:
    queues = {
        "leaf": QueueSettings(parent="middle"),
        "other": QueueSettings(),
        "middle": QueueSettings(parent="top"),
        "top": QueueSettings(parent="root"),
    }
    assert parents_first(queues) == ["top", "middle", "leaf", "other"]


def test_component_offers_only_queues_without_child_queues() -> None:
    queues = {
        "vision": QueueSettings(parent="research"),
        "other": QueueSettings(parent="root"),
        "research": QueueSettings(),
    }
    asyncio.set_event_loop(LOOP)
    set_mocks(Engine(), project="team", stack="test")
    found: list[str] = []

    @pulumi.runtime.test
    def program() -> None:
        settings = VolcanoSettings(install=False, queues=queues)
        found.extend(Volcano("volcano", VolcanoArgs(volcano=settings)).queues)

    program()
    assert found == ["other", "vision"]


class Preview(Engine):
    """Mocked engine of a preview, in which new resources have no ID."""

    def __init__(self, existing: Collection[str]) -> None:
        super().__init__()
        self.existing = existing
        self.dry_runs: dict[str, bool] = {}
        """Maps the kind and name of each object to True if all its values are known.

        The provider performs a dry run of such objects.
        """

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        _, state = super().new_resource(args)
        if "metadata" not in state:
            return "", state
        name = state["metadata"]["name"]
        self.dry_runs[f"{args.typ.rpartition(':')[2]} {name}"] = not contains_unknowns(state)
        return name if name in self.existing else "", state


@pytest.mark.parametrize(
    ("existing", "dry_runs"), [((), False), (("team",), False), (("team", "research"), True)]
)
@pytest.mark.parametrize("kind", ["volcano", "indexed", "trainjob"])
def test_previews_validate_no_object_whose_queue_does_not_exist(
    kind: str, existing: tuple[str, ...], dry_runs: bool
) -> None:
    asyncio.set_event_loop(LOOP)
    preview = Preview(existing)
    set_mocks(preview, project="team", stack="test", preview=True)
    queues = {"team": QueueSettings(), "research": QueueSettings(parent="team")}
    settings = validate(jobs.configuration(jobs.job(kind)))
    shared = SharedResources(
        namespace="ml",
        queues=["research"],
        claims={key: key for key in settings.storage.claims},
        gpu_nodes=jobs.NODES,
        images=dict.fromkeys(settings.images.workloads, TRAINING_IMAGE),
        identities=dict.fromkeys(settings.images.workloads, TRAINING_IMAGE),
        pull_secret=None,
    )

    @pulumi.runtime.test
    def program() -> None:
        volcano = Volcano(
            "volcano", VolcanoArgs(volcano=VolcanoSettings(install=False, queues=queues))
        )
        options = pulumi.ResourceOptions(depends_on=[volcano])
        TrainingJobs("training", training_jobs(settings, shared), options)

    program()
    started = {key: value for key, value in preview.dry_runs.items() if "job-" in key}
    in_queue = {"volcano": "Job"}.get(kind, "PodGroup")
    for key, is_known in started.items():
        created = key.partition(" ")[0]
        # Trainer's webhook rejects a TrainJob whose new TrainingRuntime does not exist yet.
        assert is_known is (created != "TrainJob" and (dry_runs or created != in_queue)), key
    assert preview.dry_runs["Queue team"]
    assert preview.dry_runs["Queue research"] is bool(existing)


def test_sorting_queues_terminates_for_a_cycle() -> None:
    queues = {"a": QueueSettings(parent="b"), "b": QueueSettings(parent="a")}
    assert sorted(parents_first(queues)) == ["a", "b"]


def test_priority_class_contains_all_configured_fields() -> None:
    settings = PriorityClassSettings(value=100, preemption="Never", description="Training")
    assert priority_class("training", settings) == {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "training"},
        "value": 100,
        "preemptionPolicy": "Never",
        "description": "Training",
    }


def test_scheduler_configuration_is_added_to_the_chart_values() -> None:
    settings = VolcanoSettings.model_validate(
        {
            "values": {
                "basic": {"image_registry": "registry"},
                "custom": {"admission_replicas": 2},
            },
            "scheduler": {"share": "capacity"},
            "queues": {"top": {}, "below": {"parent": "top"}},
        }
    )
    values = chart_values(settings)
    assert values["basic"] == {"image_registry": "registry"}
    assert values["custom"]["admission_replicas"] == 2
    (tier,) = yaml.safe_load(values["custom"]["scheduler_config_override"])["tiers"]
    assert {"name": "capacity", "enableHierarchy": True} in tier["plugins"]


def test_custom_scheduler_configuration_is_not_changed() -> None:
    text = "actions: allocate\ntiers: []\n"
    values = {"custom": {"scheduler_config_override": text}}
    assert (
        chart_values(VolcanoSettings(values=values))["custom"].items() >= values["custom"].items()
    )


def test_controllers_have_the_configured_rate_limits() -> None:
    settings = VolcanoSettings.model_validate(
        {
            "controllers": {"requests_per_second": 200, "burst": 400},
            "values": {"custom": {"controller_worker_threads": 4}},
        }
    )
    custom = chart_values(settings)["custom"]
    assert custom["controller_kube_api_qps"] == 200
    assert custom["controller_kube_api_burst"] == 400
    assert custom["controller_worker_threads"] == 4
    assert custom["controller_worker_threads_for_podgroup"] == 10


def test_log_level_is_configurable() -> None:
    custom = chart_values(VolcanoSettings(log_level=4))["custom"]
    assert custom["scheduler_log_level"] == custom["controller_log_level"] == 4
    custom_level = VolcanoSettings(values={"custom": {"scheduler_log_level": 5}})
    assert chart_values(custom_level)["custom"]["scheduler_log_level"] == 5


def test_webhooks_are_enabled_in_production() -> None:
    config = yaml.safe_load((CHECKOUT / "Pulumi.prod.yaml").read_text())["config"]
    settings = VolcanoSettings.model_validate(config["gpu-platform:volcano"])
    assert chart_values(settings)["custom"]["admission_enable"] is True


def test_production_queues_with_gangs_above_their_share_are_not_reclaimable() -> None:
    """A gang above its share would be evicted and then wait for the end of the other team's job."""
    config = yaml.safe_load((CHECKOUT / "Pulumi.prod.yaml").read_text())["config"]
    volcano = VolcanoSettings.model_validate(config["gpu-platform:volcano"])
    assert volcano.scheduler.reclaim == "gangs"
    limits = {key: int(each.capability["nvidia.com/gpu"]) for key, each in volcano.queues.items()}
    all_weights = sum(each.weight for each in volcano.queues.values())
    shares = {
        key: max(limits.values()) * each.weight / all_weights
        for key, each in volcano.queues.items()
    }
    queues_of_large_gangs = {
        job["queue"]
        for job in config["gpu-platform:training"]["jobs"].values()
        if job["nodes"] * job["gpus_per_node"] > shares[job["queue"]]
    }
    assert queues_of_large_gangs == {"vision"}
    assert [volcano.queues[key].reclaimable for key in queues_of_large_gangs] == [False]


def configuration(**settings: Any) -> dict[str, Any]:
    """Return the parsed scheduler configuration."""
    hierarchical = settings.pop("hierarchical", False)
    parsed = SchedulerSettings.model_validate(settings)
    return dict(yaml.safe_load(scheduler_configuration(parsed, hierarchical=hierarchical)))


def plugins(**settings: Any) -> dict[str, dict[str, Any]]:
    """Return the options of the last tier's plugins by name."""
    *_, tier = configuration(**settings)["tiers"]
    return {plugin.pop("name"): plugin for plugin in tier["plugins"]}


def test_default_scheduler_shares_by_weight_without_preemption() -> None:
    assert configuration()["actions"] == "enqueue, allocate, backfill"
    assert list(plugins()) == [
        *("priority", "gang", "conformance", "overcommit", "drf", "predicates"),
        *("proportion", "nodeorder", "binpack", "network-topology-aware"),
    ]


def test_all_plugins_that_select_victims_are_in_one_tier() -> None:
    (tier,) = configuration(preempt="gangs", reclaim="gangs")["tiers"]
    names = {plugin["name"] for plugin in tier["plugins"]}
    assert {"priority", "gang", "conformance", "proportion"} <= names


def test_enqueue_is_disabled_with_preemption() -> None:
    for settings in ({"preempt": "gangs"}, {"reclaim": "surplus"}):
        assert "enqueue" not in configuration(**settings)["actions"]
        assert "overcommit" not in plugins(**settings)


@pytest.mark.parametrize(
    ("action", "option"), [("preempt", "enablePreemptable"), ("reclaim", "enableReclaimable")]
)
def test_gang_plugin_protects_gangs_only_with_surplus(action: str, option: str) -> None:
    assert plugins(**{action: "surplus"})["gang"][option] is True
    assert plugins(**{action: "gangs"})["gang"][option] is False
    assert action in configuration(**{action: "gangs"})["actions"]


def test_drf_plugin_orders_jobs_but_never_selects_victims() -> None:
    assert plugins()["drf"] == {"enablePreemptable": False}
    assert "drf" not in plugins(drf=False)


def test_packing_counts_gpus_and_spreading_does_not_pack() -> None:
    packed = plugins()
    assert packed["binpack"]["arguments"]["binpack.resources"] == "nvidia.com/gpu"
    assert packed["binpack"]["arguments"]["binpack.resources.nvidia.com/gpu"] == 10
    assert packed["nodeorder"]["arguments"] == {"leastrequested.weight": 0}
    spread = plugins(placement="spread")
    assert "binpack" not in spread
    assert spread["nodeorder"]["arguments"]["leastrequested.weight"] > 0


def test_packing_counts_the_gpus_of_the_stack() -> None:
    gpu = {"provider": "existing", "resource": "amd.com/gpu"}
    args = VolcanoArgs.of(validate(changed("gpu", gpu)), None)
    text = chart_values(args.volcano, args.gpu_resource)["custom"]["scheduler_config_override"]
    assert "binpack.resources.amd.com/gpu: 10" in text


def test_packing_can_use_only_the_configured_devices() -> None:
    arguments = plugins(pack_by={"a.example.com/x": 2, "b.example.com/y": 3})["binpack"][
        "arguments"
    ]
    assert arguments["binpack.resources"] == "a.example.com/x, b.example.com/y"
    assert arguments["binpack.resources.b.example.com/y"] == 3
    assert (arguments["binpack.cpu"], arguments["binpack.memory"]) == (0, 0)


def test_job_that_exceeds_the_wait_limit_is_admitted_first() -> None:
    first, second = configuration(sla={"longest_wait_seconds": 7200})["tiers"]
    assert first["plugins"] == [
        {
            "name": "sla",
            "enableJobOrder": False,
            "enableJobPipelined": True,
            "arguments": {"sla-waiting-time": "7200s"},
        }
    ]
    assert "overcommit" in {plugin["name"] for plugin in second["plugins"]}


def test_parent_queues_enable_hierarchy_in_the_capacity_plugin() -> None:
    assert plugins(share="capacity", hierarchical=True)["capacity"] == {"enableHierarchy": True}
    assert plugins(share="capacity")["capacity"] == {}
