"""The provider's handling of arguments that are outputs, known or unknown."""

import socket
import subprocess
import sys
from typing import Any

import pulumi
import pytest
from pulumi.errors import InputPropertiesError
from pulumi.output import UNKNOWN

from devcluster.paths import CHECKOUT
from gpu_platform.plugin.host import Provider

TRAINING: dict[str, Any] = {"queue": "research", "cpu": "1", "memory": "4Gi", "nodes": 2.0}


def output(value: Any, *, known: bool = True) -> "pulumi.Output[Any]":
    async def of(result: Any) -> Any:
        return result

    return pulumi.Output(set(), of(value), of(known))


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    return warned


async def mapped(inputs: dict[str, Any], component: str = "TrainingJob") -> "pulumi.Output[Any]":
    made = Provider()
    found: pulumi.Output[Any] = made.map_inputs(inputs, made._component_defs[component])
    await found.future()
    return found


async def test_output_that_contains_an_object_is_mapped_like_the_object(
    warnings: list[str],
) -> None:
    nodes = {"resource": "nvidia.com/gpu", "nodeSelector": {"pool": "gpu"}}
    found = await mapped({**TRAINING, "image": "image", "gpuNodes": output(nodes)})
    values = await found.future()
    assert values is not None
    assert values["gpu_nodes"] == {"resource": "nvidia.com/gpu", "node_selector": {"pool": "gpu"}}
    assert warnings == []


async def test_unknown_arguments_in_a_preview_cause_a_warning(warnings: list[str]) -> None:
    found = await mapped({**TRAINING, "image": output(UNKNOWN, known=False)})
    assert not await found.is_known()
    assert warnings == [
        "The preview does not show the resources of this TrainingJob: image is unknown until the "
        "update."
    ]


async def test_error_for_a_secret_argument_does_not_contain_its_value() -> None:
    env = {"TOKEN": pulumi.Output.secret("correct horse")}
    with pytest.raises(InputPropertiesError, match=r"^env contains a secret") as raised:
        await mapped({**TRAINING, "image": "image", "env": env})
    assert "correct horse" not in str(raised.value)
    assert raised.value.errors == [], "Pulumi would print the values of these arguments"


async def test_error_for_a_secret_names_only_arguments_of_the_component() -> None:
    with pytest.raises(InputPropertiesError, match="name it in envFrom or volumes"):
        await mapped({**TRAINING, "image": pulumi.Output.secret("image")})
    with pytest.raises(InputPropertiesError, match="plain text: use a value that is not a secret"):
        await mapped({"namespace": pulumi.Output.secret("vision")}, "Storage")


def test_plugin_exits_with_the_engine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:
        address = f"127.0.0.1:{engine.getsockname()[1]}"
        command = [sys.executable, CHECKOUT / "gpu_platform", "--logtostderr", "-v=3", address]
        plugin = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert plugin.stdout is not None
        assert plugin.stdout.readline().strip().isdigit()
    with plugin:
        try:
            assert plugin.wait(60) == 0
        finally:
            plugin.kill()


LOADED = """
import importlib.metadata, sys
from gpu_platform.plugin.host import Provider
Provider()
tops = {name.partition(".")[0] for name in sys.modules}
owners = importlib.metadata.packages_distributions()
print(*{owner for top in tops for owner in owners.get(top, [])})
"""


def test_plugin_imports_only_its_requirements() -> None:
    """Pulumi downloads the provider of every SDK that a plugin requires, so none may be unused."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    lines = (CHECKOUT / "gpu_platform" / "requirements.txt").read_text().splitlines()
    required = {line.partition("==")[0] for line in lines if "==" in line}
    assert {each for each in required if each.startswith("pulumi")} == {
        "pulumi",
        "pulumi-kubernetes",
    }
    loaded = {name.lower().replace("_", "-") for name in done.stdout.split()}
    # In the test environment, OpenTelemetry and requests import additional installed packages.
    assert {name for name in loaded - required if "opentelemetry" not in name} <= {
        "psutil",
        "pysocks",
        "setuptools",
    }
