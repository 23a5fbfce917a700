"""Calls of the protocol, by a client that sends whatever bytes a test wants."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from inference.grpc import open_inference_pb2 as pb
from tests.inference.serving import Server

SERVICE = "/inference.GRPCInferenceService/"
LARGE = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@contextlib.contextmanager
def channel_to(server: Server) -> Iterator[grpc.Channel]:
    """A connection of its own."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", LARGE) as channel:
        yield channel


def raw(channel: grpc.Channel, method: str) -> Any:
    """Takes the bytes of a message; those of the answer come back."""
    return channel.unary_unary(SERVICE + method)


def probe(what: int, seconds: float = 0, padding: int = 0) -> bytes:
    """A ModelInfer of one sample for `probes.Probe`."""
    tensor = {"name": "inputs", "datatype": "FP32", "shape": [1, 3]}
    message = pb.ModelInferRequest(
        model_name="probe",
        id="x" * padding,
        inputs=[tensor | {"contents": {"fp32_contents": [what, seconds, 7]}}],
    )
    return message.SerializeToString()
