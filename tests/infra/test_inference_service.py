"""The rollout order of a service, and its entry in the stack's outputs."""

from typing import Any

from infra.inference_service import summary
from tests.infra.conftest import Provision
from tests.infra.examples import changed, good
from tests.infra.serving.examples import CANARY, DIGEST, GATEWAY, serving

SERVICE = good()["inference"]["services"]["digits"]


def with_canary(**changes: Any) -> dict[str, Any]:
    service = {**SERVICE, "route": GATEWAY, "canary": {**CANARY, **changes}}
    return changed("inference.services.digits", service)


def test_the_route_changes_only_after_the_canary_is_ready(provision: Provision) -> None:
    plan = provision(with_canary())
    assert {
        "inference-digits-canary-deployment",
        "inference-digits-canary-service",
    } <= plan.dependencies("inference-digits-httproute")
    assert "inference-digits-canary-deployment" in plan.dependencies(
        "inference-digits-canary-service"
    )
    assert "pulumi.com/skipAwait" not in str(plan.inputs("inference-digits-canary-deployment"))


def test_stable_version_does_not_wait_for_a_canary(provision: Provision) -> None:
    plan = provision(with_canary())
    for kind in ("deployment", "service", "poddisruptionbudget"):
        dependencies = plan.dependencies(f"inference-digits-{kind}")
        assert not any("canary" in name for name in dependencies)


def test_canary_weight_zero_changes_only_the_route(provision: Provision) -> None:
    before, after = provision(with_canary()), provision(with_canary(weight=0))
    assert before.resources.keys() == after.resources.keys()
    changed_names = {
        name for name in before.resources if before.inputs(name) != after.inputs(name)
    } - component_names(before)
    assert changed_names == {"inference-digits-httproute"}


def test_promotion_updates_the_service_and_removes_the_canary(provision: Provision) -> None:
    service = {name: value for name, value in SERVICE.items() if name != "job"}
    promoted = {**service, "run": CANARY["run"], "route": GATEWAY}
    before, after = (
        provision(with_canary()),
        provision(changed("inference.services.digits", promoted)),
    )
    removed = before.resources.keys() - after.resources.keys()
    assert removed == {"inference-digits-canary-deployment", "inference-digits-canary-service"}
    env = after.inputs("inference-digits-deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "RUN_NAME", "value": CANARY["run"]} in env["env"]


def test_output_omits_a_digest_that_is_not_known_yet() -> None:
    assert summary(serving()) == {
        "url": "http://digits.ml.svc.cluster.local:8080",
        "service": "digits",
        "namespace": "ml",
        "model": "digits",
        "runtime": "torch",
        "run": "digits-0123abcd",
    }


def test_output_contains_pinned_digest_url_and_canary() -> None:
    url = "s3://models/digits/export"
    output = summary(serving(job=None, url=url, digest=DIGEST, route=GATEWAY, canary=CANARY))
    assert (output["export"], output["digest"]) == (url, DIGEST)
    assert "run" not in output
    assert output["canary"] == {"service": "digits-canary", "weight": 20, "run": CANARY["run"]}


def component_names(plan: Any) -> set[str]:
    """Return the names of components, whose inputs do not reach the cluster."""
    return {name for name, request in plan.resources.items() if not request.custom}
