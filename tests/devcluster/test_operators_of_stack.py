"""Requirements of a stack file for the embedded cluster."""

from pathlib import Path

import pytest
import yaml

from devcluster import DevclusterError
from devcluster.images.base_image import PYTORCH, Base
from devcluster.images.catalog import KUBECTL, MPI, RAY, TENSORFLOW, ToolImage
from devcluster.operators import Requirements, stack_requirements
from devcluster.paths import CHECKOUT
from devcluster.toolchain import OPERATORS
from kube.kinds import KINDS

REGISTRY = "127.0.0.1:5000"


def requirements_of(
    tmp_path: Path, *kinds: str, base: str = f"{REGISTRY}/{PYTORCH.reference}"
) -> Requirements:
    """Return the requirements of a stack with jobs of these kinds and this base image."""
    file = tmp_path / "Pulumi.dev.yaml"
    images = {"registry": REGISTRY, "workloads": {"training": {"build": {"base_image": base}}}}
    jobs = {f"job-{number}": {"kind": kind} for number, kind in enumerate(kinds)}
    jobs["no-kind"] = {}
    config = {"gpu-platform:images": images, "gpu-platform:training": {"jobs": jobs}}
    file.write_text(yaml.safe_dump({"config": config}))
    return stack_requirements(file, REGISTRY)


def test_every_operator_is_required_by_a_job_kind_or_a_pod_group() -> None:
    assert {kind.operator for kind in KINDS.values()} == {None, *OPERATORS} - {"lws"}


@pytest.mark.parametrize(
    ("nodes", "operators"), [(1, ()), (2, ("lws",)), ("2", ("lws",)), ("x", ())]
)
def test_replicas_with_several_pods_require_leader_worker_set(
    tmp_path: Path, nodes: object, operators: tuple[str, ...]
) -> None:
    file = tmp_path / "Pulumi.dev.yaml"
    services = {"chat": {"runtime": "vllm", "server": {"nnodes": nodes}}}
    config = {"gpu-platform:inference": {"services": services}}
    file.write_text(yaml.safe_dump({"config": config}))
    assert stack_requirements(file, REGISTRY).operators == operators


@pytest.mark.parametrize("stack", ["dev", "simulated"])
def test_default_stacks_require_no_operator_and_no_additional_image(stack: str) -> None:
    requirements = stack_requirements(CHECKOUT / f"Pulumi.{stack}.yaml", REGISTRY)
    assert requirements.operators == ()
    assert set(requirements.bases) <= {PYTORCH}
    assert requirements.tools == ()


@pytest.mark.parametrize(("registry", "tools"), [(REGISTRY, (KUBECTL,)), ("example.com", ())])
def test_image_in_a_build_argument_is_required(
    tmp_path: Path, registry: str, tools: tuple[ToolImage, ...]
) -> None:
    file = tmp_path / "Pulumi.dev.yaml"
    build = {"args": {"KUBECTL_IMAGE": f"{registry}/{KUBECTL.reference}", "NUMBER": 1}}
    images = {"workloads": {"notebook": {"build": build}, "other": {"build": {"args": None}}}}
    file.write_text(yaml.safe_dump({"config": {"gpu-platform:images": images}}))
    assert stack_requirements(file, REGISTRY).tools == tools


@pytest.mark.parametrize(
    ("kind", "operator"), [(name, kind.operator) for name, kind in KINDS.items() if kind.operator]
)
def test_job_requires_the_operator_for_its_kind(tmp_path: Path, kind: str, operator: str) -> None:
    assert requirements_of(tmp_path, "volcano", kind, kind).operators == (operator,)


def test_volcano_job_kinds_require_no_operator(tmp_path: Path) -> None:
    assert requirements_of(tmp_path, "mpi", "tensorflow", "plain", "indexed").operators == ()


@pytest.mark.parametrize("base", [MPI, TENSORFLOW, RAY])
def test_an_image_requires_its_base_image(tmp_path: Path, base: Base) -> None:
    assert requirements_of(tmp_path, base=f"{REGISTRY}/{base.reference}").bases == (base,)


def test_image_in_another_registry_requires_no_base_image(tmp_path: Path) -> None:
    assert requirements_of(tmp_path, base=f"registry.example.com/{MPI.reference}").bases == ()


def test_stack_file_without_configuration_requires_nothing(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text("")
    assert stack_requirements(tmp_path / "Pulumi.dev.yaml", REGISTRY) == Requirements()


@pytest.mark.parametrize("text", ["[", "\xff", "&a {a: *a}"])
def test_error_names_the_unreadable_stack_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(text, "latin-1")
    with pytest.raises(DevclusterError, match=r"Pulumi\.dev\.yaml"):
        stack_requirements(tmp_path / "Pulumi.dev.yaml", REGISTRY)
