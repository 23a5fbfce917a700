"""Errors in the settings of Python programs."""

from dataclasses import replace

import pulumi
import pytest
from pydantic import BaseModel

import gpu_platform
from gpu_platform import (
    ArgumentError,
    GpuNodes,
    Platform,
    PlatformError,
    QueueSettings,
    TrainingConfig,
    TrainingJobSettings,
    VolcanoSettings,
    facade,
)
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.training.job import TrainingJobSettings as StackSettings
from infra.training_run import run_name
from tests.infra.examples import TRAINING_IMAGE

JOB = {"queue": "vision", "cpu": "1", "memory": "4Gi", "command": ["./run"]}


@pytest.fixture
async def output() -> pulumi.Output[str]:
    return pulumi.Output.from_input("value")


@pytest.fixture
async def platform(output: pulumi.Output[str]) -> Platform:
    return Platform(
        namespace=output,
        claims={"checkpoints": output},
        gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
        images={},
    )


def error_lines(construct: type[BaseModel], **values: object) -> list[str]:
    with pytest.raises(ArgumentError) as error:
        construct(**values)
    # Pulumi prints such errors without a traceback.
    assert isinstance(error.value, pulumi.RunError)
    return str(error.value).splitlines()


def test_error_is_a_sentence_with_the_key_of_the_invalid_value() -> None:
    assert error_lines(TrainingJobSettings, **JOB, nodes="two", gpus=8)[0] == (
        'TrainingJobSettings.nodes is "two", but must be an integer.'
    )
    assert "did you mean" in error_lines(TrainingJobSettings, **JOB, node=2)[0]
    (sentence,) = error_lines(TrainingConfig, model="resnet9000")
    assert sentence.startswith('TrainingConfig.model is "resnet9000"')


async def test_error_for_an_output_suggests_a_fix(output: pulumi.Output[str]) -> None:
    (sentence,) = error_lines(TrainingJobSettings, **JOB, env={"TOKEN": output})
    assert sentence.startswith("TrainingJobSettings.env.TOKEN is an output of a resource, but")
    assert "env_from" in sentence


def test_errors_in_nested_settings_contain_the_full_path() -> None:
    (sentence,) = error_lines(VolcanoSettings, queues={"vision": {"weight": 0}})
    assert sentence == "VolcanoSettings.queues.vision.weight is 0, but must be at least 1."
    assert VolcanoSettings(queues={"vision": QueueSettings(weight=2)}).queues["vision"].weight == 2


def test_all_settings_of_the_package_have_readable_errors() -> None:
    models = [getattr(gpu_platform, name) for name in facade.__all__]
    found = [each for each in models if isinstance(each, type) and issubclass(each, BaseModel)]
    assert len(found) > 10
    for model in found:
        with pytest.raises(ArgumentError):
            model(unknown_key=1)
        assert not model.__pydantic_custom_init__


async def test_namespace_and_claims_of_a_run_can_be_outputs(platform: Platform) -> None:
    placed = platform.training_job("digits", TrainingJobSettings(**JOB), image=TRAINING_IMAGE)
    assert placed.namespace is platform.namespace


async def test_only_explicit_settings_determine_the_name_of_a_run(platform: Platform) -> None:
    """The settings of the package are subclasses of the stack's settings."""
    written = {**JOB, "kind": "mpi", "launcher": {"cpu": "2"}}
    ours = TrainingJobSettings(**written)
    assert ours == gpu_platform.TrainingJobSettings.model_validate(written)
    placed = platform.training_job("digits", ours, image=TRAINING_IMAGE)
    stacks = replace(placed, job=StackSettings.model_validate(written))
    assert run_name(placed) == run_name(stacks)


async def test_outputs_that_determine_names_are_rejected(
    platform: Platform, output: pulumi.Output[str]
) -> None:
    settings = TrainingJobSettings(**JOB)
    with pytest.raises(
        PlatformError, match="image is an output of a resource, but the name of a run depends on it"
    ):
        platform.training_job("digits", settings, image=output)
    service = InferenceServiceSettings(run="digits-01234567", cpu="1", memory="1Gi")
    with pytest.raises(PlatformError, match="The namespace of 'digits' is an output"):
        platform.inference_service("digits", service, image=TRAINING_IMAGE)
