"""Operators of the embedded cluster: their manifests, and how they are installed."""

from pathlib import Path

import pytest
import yaml

from devcluster import DevclusterError, operators
from devcluster.images.base_image import PYTORCH
from devcluster.images.catalog import OPERATOR_IMAGES
from devcluster.toolchain import OPERATORS, pins
from tests.devcluster.conftest import Install

KUSTOMIZATIONS = [
    pytest.param(operator, manifests.name, id=manifests.name)
    for operator in OPERATORS
    for manifests in pins.load().module(operator).manifests
]


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
