"""Requests and responses in each format."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from tools.bench.inference import formats
from tools.bench.inference.contestants import CONTESTANTS, OURS, Task
from tools.bench.inference.workloads import SAMPLES, WORKLOADS

IMAGE = WORKLOADS["simple-cnn"]
ANSWER = np.array([0.25, 0.75], "<f4")


def test_samples_are_reproducible_and_distinct() -> None:
    samples = IMAGE.samples()
    assert samples.shape == (SAMPLES, 3, 32, 32)
    assert samples.dtype == np.float32
    assert np.array_equal(samples, IMAGE.samples())
    assert len(np.unique(samples.sum((1, 2, 3)))) == SAMPLES


@pytest.mark.parametrize("data_format", formats.FORMATS)
@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_server_gets_the_same_numbers(name: str, data_format: formats.Format) -> None:
    sample = WORKLOADS["no-op"].samples()[3]
    request = CONTESTANTS[name].encode[data_format](WORKLOADS["no-op"], sample)
    assert np.allclose(numbers_in(request), sample, rtol=1e-6)


def test_servers_use_separate_ports() -> None:
    folder, values = Path("/nowhere"), []
    for port in (20_000, 20_002):
        task = Task(WORKLOADS["no-op"], "raw", folder, port, folder, Path("python"))
        values += [
            value
            for name, value in CONTESTANTS[OURS].start(task).environment.items()
            if name.endswith("PORT")
        ]
    assert values == ["20000", "20001", "20002", "20003"]


def numbers_in(request: formats.Request) -> np.ndarray:
    if length := request.headers.get(formats.HEADER_LENGTH):
        return np.frombuffer(request.body[int(length) :], "<f4")
    if request.headers == formats.RAW:
        return np.frombuffer(request.body, "<f4")
    document = json.loads(request.body)
    if "values" in document:
        return np.ravel(document["values"])
    (tensor,) = document["inputs"]
    if tensor["datatype"] == "BYTES":
        return np.frombuffer(base64.b64decode(tensor["data"][0]), "<f4")
    return np.ravel(tensor["data"])


def test_binary_tensors_have_the_header_with_the_json_length() -> None:
    request = formats.v2_binary(IMAGE, IMAGE.samples()[0])
    length = int(request.headers[formats.HEADER_LENGTH])
    document = json.loads(request.body[:length])
    assert document["inputs"][0]["parameters"]["binary_data_size"] == len(request.body) - length


@pytest.mark.parametrize(
    ("decode", "body", "headers"),
    [
        (formats.from_raw, ANSWER.tobytes(), {}),
        (formats.from_list, b"[[0.25, 0.75]]", {}),
        (formats.from_list, b'{"values": [0.25, 0.75]}', {}),
        (formats.from_v2, b'{"outputs": [{"datatype": "FP32", "data": [0.25, 0.75]}]}', {}),
        (formats.from_v2, b"{}" + ANSWER.tobytes(), {"inference-header-content-length": "2"}),
        (formats.from_v2, b'{"outputs": [{"datatype": "BYTES", "data": ["AACAPgAAQD8="]}]}', {}),
    ],
)
def test_responses_in_every_format_are_decoded(
    decode: formats.Decode, body: bytes, headers: dict[str, str]
) -> None:
    assert decode(body, headers).tolist() == ANSWER.tolist()
