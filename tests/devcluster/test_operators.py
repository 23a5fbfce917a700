"""Operators of the embedded cluster: their manifests, and how they are installed."""

from pathlib import Path

import pytest
import yaml

from devcluster import DevclusterError, operators
from devcluster.images.base_image import PYTORCH, Base
from devcluster.images.catalog import KUBECTL, MPI, OPERATOR_IMAGES, RAY, TENSORFLOW, ToolImage
from devcluster.operators import Requirements, stack_requirements
from devcluster.paths import CHECKOUT
from devcluster.toolchain import pins
from devcluster.toolchain.pins import OPERATORS
from kube.kinds import KINDS
from tests.devcluster.conftest import Install

KUSTOMIZATIONS = [
    pytest.param(operator, manifests.name, id=manifests.name)
    for operator in OPERATORS
    for manifests in pins.load().module(operator).manifests
]
REGISTRY = "127.0.0.1:5000"


def test_every_operator_has_images_and_namespaces() -> None:
    assert set(OPERATOR_IMAGES) == set(operators.NAMESPACES) == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_program_of_an_operator_has_an_image(operator: pins.Operator) -> None:
    programs = {program.name for program in pins.load().module(operator).programs}
    assert {image.tool for image in OPERATOR_IMAGES[operator]} == programs


@pytest.mark.parametrize(("operator", "name"), KUSTOMIZATIONS)
def test_kustomizations_use_images_in_the_cluster_registry(
    operator: pins.Operator, name: str
) -> None:
    file = pins.load().module(operator).directory / f"{name}.yaml"
    (image,) = yaml.safe_load(file.read_text())["images"]
    references = {f"127.0.0.1:5000/{image.reference}" for image in OPERATOR_IMAGES[operator]}
    assert f"{image['newName']}:{image['newTag']}" in references
    assert image["newTag"].removeprefix("v") in _versions(operator)


def _versions(operator: pins.Operator) -> set[str]:
    """Versions in go.mod of the modules that contain the operator's manifests."""
    module = pins.load().module(operator)
    required = (module.directory / "go.mod").read_text().split()
    return {
        required[required.index(manifests.module) + 1].removeprefix("v")
        for manifests in module.manifests
    }


def test_init_container_of_the_training_operator_uses_an_existing_image() -> None:
    file = pins.load().module("training-operator").directory / "training-operator.yaml"
    assert f"--pytorch-init-container-image=127.0.0.1:5000/{PYTORCH.reference}" in file.read_text()


def test_manifests_are_applied_in_order_and_all_pods_are_awaited(
    tmp_path: Path, install: Install
) -> None:
    kubectl = str(install("kubectl", f'echo "$*" >> {tmp_path}/calls'))
    reported: list[str] = []
    folders = {"trainer": [tmp_path / "jobset", tmp_path / "trainer"]}
    operators.install([kubectl], folders, reported.append)
    first, second, *waits = (tmp_path / "calls").read_text().splitlines()
    assert first.endswith(f"--kustomize={tmp_path}/jobset")
    assert second.endswith(f"--kustomize={tmp_path}/trainer")
    assert [line.split("--namespace=")[1].split()[0] for line in waits] == [
        "jobset-system",
        "kubeflow-system",
    ]
    assert reported[0] == "trainer: applying jobset"


def test_kubectl_error_during_installation_is_reported(tmp_path: Path, install: Install) -> None:
    kubectl = str(install("kubectl", "echo no such webhook >&2; exit 1"))
    with pytest.raises(DevclusterError, match=r"apply .*failed:\nno such webhook"):
        operators.install([kubectl], {"trainer": [tmp_path]}, lambda _: None)


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
