"""Objects of sweeps: trials are runs of jobs, and the controller has minimal permissions."""

import json
from dataclasses import replace
from typing import Any

import pulumi
import pytest

from infra.manifests import with_metadata
from infra.settings import SettingsError, validate
from infra.settings.training.sweep import CONTROLLER
from infra.sweep import (
    PLAN,
    SweepControllerArgs,
    controller_manifests,
    parse_plan,
    plan,
    template,
    winner_path,
)
from infra.training_run import manifests, run_name
from tests.infra.conftest import Provision
from tests.infra.examples import TRAINING_IMAGE
from tests.infra.sweeps import stack_settings, sweep, values

HYPERPARAMETERS = {"learning_rate": 0.0123456789, "batch_size": 32, "optimizer": "sgd"}


def test_trial_equals_the_run_of_a_job_with_its_hyperparameters() -> None:
    searched = sweep()
    configured = values()["training"]["sweeps"]["digits"]["job"]
    configured["hyperparameters"] |= HYPERPARAMETERS
    equivalent = values()
    equivalent["training"] = {"jobs": {"digits": configured}}
    equivalent["images"]["workloads"].pop("sweeps")
    args = replace(searched.args, job=validate(equivalent).training.jobs["digits"])
    assert searched.run(HYPERPARAMETERS) == run_name(args)
    (job,) = manifests(args, run_name(args), args.image)
    assert searched.manifest(HYPERPARAMETERS) == with_metadata(job, {"team": "vision"}, {})


@pytest.mark.parametrize("price", [None, 2.4])
def test_serialized_plan_describes_the_same_trials(price: float | None) -> None:
    searched = sweep(price=price)
    (parsed,) = parse_plan(json.dumps(plan({"digits": searched}), sort_keys=True)).values()
    assert parsed.price == searched.price
    assert parsed.run(HYPERPARAMETERS) == searched.run(HYPERPARAMETERS)
    assert parsed.manifest(HYPERPARAMETERS) == searched.manifest(HYPERPARAMETERS)
    assert parsed.settings == searched.settings


def test_changed_bounds_of_a_sweep_do_not_rename_its_trials() -> None:
    changed_sweep = sweep(stack_settings(parallel=1, trials=100, budget={"gpu_hours": 20}))
    assert changed_sweep.run(HYPERPARAMETERS) == sweep().run(HYPERPARAMETERS)


@pytest.mark.parametrize(
    ("budget", "price", "hours"),
    [
        ({"gpu_hours": 10}, None, 10),
        ({"gpu_hours": 10, "money": 12}, 2, 6),
        ({"gpu_hours": 5, "money": 12}, 2, 5),
        ({"money": 12}, 2, 6),
        ({"gpu_hours": 10, "money": 12}, 0, 10),
    ],
)
def test_money_budget_limits_the_gpu_hours(
    budget: dict[str, float], price: float | None, hours: float
) -> None:
    searched = sweep(stack_settings(budget=budget), price)
    assert searched.gpu_hours == hours
    annotations = template(searched)["metadata"]["annotations"]
    assert annotations["gpu-platform.dev/sweep-gpu-hours"] == str(hours)
    assert annotations.get("gpu-platform.dev/sweep-money") == ("12" if "money" in budget else None)


def test_program_rejects_a_money_budget_without_a_price(provision: Provision) -> None:
    with pytest.raises(pulumi.RunError, match=r"budget\.money is 100, but the price table"):
        provision(values(budget={"money": 100}))


def test_template_is_a_trial_annotated_with_the_sweeps_bounds() -> None:
    built = template(sweep())
    trial = sweep().manifest({"learning_rate": 1e-4, "batch_size": 16, "optimizer": "adamw"})
    command = built["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert "--learning-rate=0.0001" in command
    assert built["spec"].keys() == trial["spec"].keys()
    assert (
        built["metadata"]["annotations"].items()
        >= {
            "gpu-platform.dev/sweep-parallel": "2",
            "gpu-platform.dev/sweep-trials": "8",
            "gpu-platform.dev/sweep-gpu-hours": "10",
        }.items()
    )


def test_server_reads_the_model_through_the_winners_link(provision: Provision) -> None:
    found = provision(values(winner="serve"))
    spec = found.inputs("inference-digits-deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    text = found.inputs("sweeps-configmap")["data"][PLAN]
    (searched,) = parse_plan(text).values()
    assert variables["INFERENCE_MODEL_PATH"] == f"/models/{winner_path(searched)}/export"
    assert variables["SWEEP_NAME"] == "digits-sweep"
    assert "RUN_NAME" not in variables


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 9},
        {"budget": {"gpu_hours": 11}},
        {"job": {"memory": "65Gi"}},
        {"sampler": "random"},
    ],
    ids=str,
)
def test_changed_sweep_gets_a_new_link_to_its_winner(changes: dict[str, Any]) -> None:
    assert winner_path(sweep(stack_settings(**changes))) != winner_path(sweep())
    assert winner_path(sweep(stack_settings(parallel=1))) == winner_path(sweep())


def test_controller_can_only_run_jobs_in_its_namespace() -> None:
    settings = stack_settings()
    objects = controller_manifests(
        SweepControllerArgs(
            controller=settings.training.sweep_controller,
            sweeps={"digits": sweep()},
            plan="{}",
            namespace="ml",
            image=TRAINING_IMAGE,
            claims={"checkpoints": "ckpt"},
            gpu_nodes=sweep().args.gpu_nodes,
            isolated=True,
        )
    )
    found = {each["kind"]: each for each in objects}
    assert all(each["metadata"]["namespace"] == "ml" for each in objects)
    granted = {
        (group, resource, verb, *rule.get("resourceNames", ()))
        for rule in found["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        ("batch.volcano.sh", "jobs", "list"),
        ("batch.volcano.sh", "jobs", "create"),
        ("scheduling.volcano.sh", "podgroups", "list"),
        ("bus.volcano.sh", "commands", "create"),
        ("flow.volcano.sh", "jobtemplates", "patch", "digits-sweep"),
    }
    assert "NetworkPolicy" in found
    spec = found["Deployment"]["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    (container,) = spec["template"]["spec"]["containers"]
    assert set(container["resources"]["limits"]) == {"memory"}
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/claims/checkpoints", "/plan"} <= mounts


def test_quota_must_cover_the_sweep_controller() -> None:
    configured = values()
    configured["tenancy"]["quota"] = {"memory": "256Mi"}
    with pytest.raises(SettingsError, match="stack's own programs use up to 512Mi memory"):
        validate(configured)


def test_stack_without_sweeps_has_no_controller(provision: Provision) -> None:
    configured = values()
    configured["training"] = {}
    assert not [name for name in provision(configured).resources if CONTROLLER in str(name)]


def test_stack_with_sweeps_creates_template_and_controller(provision: Provision) -> None:
    found = provision(values())
    kinds = {request.type for request in found.resources.values() if "sweeps" in request.name}
    assert {
        "gpu-platform:index:SweepController",
        "kubernetes:flow.volcano.sh/v1alpha1:JobTemplate",
        "kubernetes:apps/v1:Deployment",
    } <= kinds
    assert sum(request.type.endswith(":Deployment") for request in found.resources.values()) == 1
