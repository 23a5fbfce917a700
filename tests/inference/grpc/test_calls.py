"""The protocol over gRPC, asked of a real server; test_clients asks with clients by others."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from inference.grpc import open_inference_pb2 as pb
from tests.inference.serving import INFER, Server, digits, output, request_of, value

Call = Any


@pytest.fixture(scope="module")
def call(server: Server) -> Iterator[Call]:
    """Calls a method of the service with its message."""
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:

        def called(method: str, message: Any, **more: Any) -> Any:
            answer = getattr(pb, type(message).__name__.replace("Request", "Response"))
            return channel.unary_unary(
                f"/inference.GRPCInferenceService/{method}",
                request_serializer=type(message).SerializeToString,
                response_deserializer=answer.FromString,
            )(message, timeout=more.pop("timeout", 30), **more)

        yield called


def message(**change: Any) -> pb.ModelInferRequest:
    """Four digits, with some fields changed."""
    images = digits(4)
    tensor = {"name": "images", "datatype": "FP32", "shape": images.shape}
    given = {"model_name": "digits", "inputs": [tensor], "raw_input_contents": [images.tobytes()]}
    return pb.ModelInferRequest(**(given | change))


def contents(**values: Any) -> dict[str, Any]:
    """The same digits, as a list of numbers."""
    tensor = {"name": "images", "datatype": "FP32", "shape": digits(4).shape}
    return {"inputs": [tensor | {"contents": values}], "raw_input_contents": []}


def test_health_and_metadata_are_those_of_rest(call: Call, server: Server) -> None:
    assert call("ServerLive", pb.ServerLiveRequest()).live
    assert call("ServerReady", pb.ServerReadyRequest()).ready
    assert call("ModelReady", pb.ModelReadyRequest(name="digits")).ready
    assert "generate" in call("ServerMetadata", pb.ServerMetadataRequest()).extensions
    said = call("ModelMetadata", pb.ModelMetadataRequest(name="digits"))
    rest = server.client.get("/v2/models/digits").json()
    assert list(said.versions) == rest["versions"]
    assert [list(tensor.shape) for tensor in said.inputs] == [[-1, 1, 8, 8]]
    assert [tensor.name for tensor in said.outputs] == ["probabilities", "class", "label"]
    load = pb.RepositoryModelLoadRequest(model_name="digits")
    assert call("RepositoryModelLoad", load) == pb.RepositoryModelLoadResponse()


def test_predictions_are_those_of_rest(call: Call, server: Server) -> None:
    rest = output(server.client.post(INFER, json=request_of(digits(4))), "probabilities")
    for given in (message(), message(**contents(fp32_contents=digits(4).ravel()))):
        said = call("ModelInfer", given)
        got = np.frombuffer(said.raw_output_contents[0], np.float32)
        assert got.tolist() == pytest.approx(rest, abs=1e-6)
    one = call("ModelInfer", message(id="mine", outputs=[{"name": "class"}]))
    assert (one.id, [tensor.name for tensor in one.outputs]) == ("mine", ["class"])


TENSOR = {"name": "images", "datatype": "FP32", "shape": (4, 1, 8, 8)}


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"model_name": "other"}, "NOT_FOUND", "'other' is not served"),
        ({"model_version": "1"}, "NOT_FOUND", "version '1' is not served"),
        ({"inputs": []}, "INVALID_ARGUMENT", "inputs has 0 tensors"),
        ({"inputs": [TENSOR | {"name": "x"}]}, "INVALID_ARGUMENT", "inputs[0].name"),
        ({"inputs": [TENSOR | {"datatype": "INT8"}]}, "INVALID_ARGUMENT", "inputs[0].datatype"),
        ({"inputs": [TENSOR | {"shape": (4, 64)}]}, "INVALID_ARGUMENT", "inputs[0].shape"),
        ({"raw_input_contents": [b"x"]}, "INVALID_ARGUMENT", "raw_input_contents[0] has 1 bytes"),
        ({"raw_input_contents": [b"", b""]}, "INVALID_ARGUMENT", "has 2 entries for 1 inputs"),
        (contents(fp32_contents=[1.0]), "INVALID_ARGUMENT", "fp32_contents has 1 values"),
        (contents(int_contents=[1]), "INVALID_ARGUMENT", "contents has int_contents"),
        ({"outputs": [{"name": "x"}]}, "INVALID_ARGUMENT", "outputs[0].name"),
        (
            {"parameters": {"timeout": pb.InferParameter(int64_param=1)}},
            "DEADLINE_EXCEEDED",
            "deadline",
        ),
    ],
)
def test_a_message_at_fault_is_refused_in_words(
    change: dict[str, Any], code: str, said: str, call: Call
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call("ModelInfer", message(**change))
    assert refused.value.code().name == code
    assert said in refused.value.details()


def test_a_message_above_the_limit_is_refused(call: Call) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call("ModelInfer", message(raw_input_contents=[bytes(1_200_000)]))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_are_counted_as_requests_of_http_are(call: Call, server: Server) -> None:
    series = 'inference_requests_total{code="200",protocol="grpc"}'
    before = value(server.metrics, series)
    call("ModelInfer", message())
    assert value(server.metrics, series) == before + 1
