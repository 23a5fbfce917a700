"""Arguments of `vllm serve`."""

from typing import Any

import pytest

from infra.serving.runtimes import read
from infra.serving.runtimes.runtime import Launch


def arguments(gpus: int, **server: Any) -> list[str]:
    launch = Launch(model="chat", path="/models", port=8080, gpus=gpus)
    return read("vllm", server).command(launch)


@pytest.mark.parametrize("name", ["allowed_origins", "allowed_methods", "allowed_headers"])
def test_list_that_vllm_parses_as_json_is_one_argument(name: str) -> None:
    found = arguments(1, **{name: ["a", "b"]})
    assert found[-1] == f'--{name.replace("_", "-")}=["a", "b"]'


def test_middleware_list_repeats_the_argument() -> None:
    assert arguments(1, middleware=["a.B", "c.D"])[-2:] == ["--middleware=a.B", "--middleware=c.D"]


def test_gpus_are_divided_by_the_prefill_context_parallel_size() -> None:
    found = arguments(8, prefill_context_parallel_size=2)
    assert {"--tensor-parallel-size=4", "--prefill-context-parallel-size=2"} <= set(found)
    assert read("vllm", {"prefill_context_parallel_size": 2}).problem(8) is None
    server = {"prefill_context_parallel_size": 2, "tensor_parallel_size": 8}
    assert "2 (prefill_context_parallel_size)" in str(read("vllm", server).problem(8))


def test_server_without_gpus_gets_only_explicit_parallel_sizes() -> None:
    assert "--tensor-parallel-size=2" in arguments(0, tensor_parallel_size=2)
    unset = arguments(0, tensor_parallel_size=None)
    assert not [each for each in unset if "parallel" in each]
