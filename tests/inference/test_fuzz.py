"""Fuzzing with damaged requests."""

import http.client
import json
import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from tests.inference.serving import INFER, Server, private_bytes, request_body, value

COUNT = int(os.environ.get("FUZZ_REQUESTS", "2500"))
"""Number of requests; four of five are V2 inference requests."""
ALLOWED = {200, 400, 404, 408, 413, 415, 429}
DEADLINE_PASSED = 504
"""Status code that is also allowed if the request sets a deadline."""

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 1.5, -0.0, 1e38, 1e308,
    "", "images", "FP32", "INT64", "BYTES", "\x00", "é" * 50, "9" * 400, [], {}, [[]], [[[[]]]],
    [None], [True], ["1"], [{}], [1, [2]], {"name": "images"}, {"binary_data_size": 256},
)  # fmt: skip


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document, except those after the third in each list."""
    all_paths = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            all_paths += paths_of(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:3]):
            all_paths += paths_of(inner, (*path, index))
    return all_paths


def change(document: Any, rng: random.Random) -> Any:
    """Replace, remove, duplicate, wrap or rename one value."""
    *parents, last = rng.choice(paths_of(document)[1:])
    owner = document
    for key in parents:
        owner = owner[key]
    action = rng.randrange(5)
    if action == 0:
        owner[last] = deepcopy(rng.choice(ODD_VALUES))
    elif action == 1:
        del owner[last]
    elif action == 2:
        owner[last] = [owner[last]]
    elif action == 3 and isinstance(owner, dict):
        owner[rng.choice(["", "data", "shape", "x", "parameters"])] = owner.pop(last)
    elif isinstance(owner, list):
        owner.insert(0, deepcopy(rng.choice(ODD_VALUES)))
    else:
        owner[last] = [owner[last], owner[last]]
    return document


def damage(body: bytes, rng: random.Random) -> bytes:
    """Flip, insert or remove bytes, or truncate the body."""
    content = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(content) + 1)
        action = rng.randrange(4)
        if action == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            content[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif action == 2:
            del content[at : at + rng.randrange(1, 20)]
        else:
            content = content[: max(at, 1)]
    return bytes(content)


FuzzedRequest = tuple[str, bytes, dict[str, str]]


def as_json(rng: random.Random) -> FuzzedRequest:
    document: Any = json.loads(VALID)
    for _ in range(rng.randrange(1, 4)):
        if len(paths_of(document)) > 1:
            document = change(document, rng)
    return INFER, json.dumps(document).encode(), {}


def as_bytes(rng: random.Random) -> FuzzedRequest:
    return INFER, damage(VALID, rng), {}


def as_binary(rng: random.Random) -> FuzzedRequest:
    document = json.loads(BINARY)
    if rng.random() < 0.6:
        document = change(document, rng)
    head, blob = json.dumps(document).encode(), struct.pack("<64f", *[0.5] * 64)
    length = str(len(head) + rng.choice([0, 0, 0, 1, -1, 5000]))
    if rng.random() < 0.2:
        length = rng.choice(["", "x", "-1", "0", "1e3", "9" * 30, " 7", str(len(head))])
    if rng.random() < 0.5:
        blob = damage(blob, rng)
    return INFER, head + blob, {"Inference-Header-Content-Length": length}


def as_other_request(rng: random.Random) -> FuzzedRequest:
    path, kind, body = rng.choice(OTHER_REQUESTS)
    headers = {"Content-Type": kind} if kind else {}
    if rng.random() < 0.3:
        headers["X-Request-Timeout"] = rng.choice(["0", "-1", "nan", "inf", "1e-9", "x", "5"])
    return path, damage(body, rng), headers


IMAGE = np.full((1, 1, 8, 8), 0.5, np.float32)
VALID = json.dumps(
    request_body(IMAGE, id="a", parameters={"x": 1}, outputs=[{"name": "label"}])
).encode()
BINARY = json.dumps(
    {
        "inputs": [
            {
                "name": "images",
                "shape": [1, 1, 8, 8],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 256},
            }
        ],
        "outputs": [{"name": "label", "parameters": {"binary_data": True}}],
    }
)
OTHER_REQUESTS = (
    ("/v2/models/digits/versions/1/infer", "", VALID),
    ("/v2/models/other/infer", "", VALID),
    (INFER, "application/x-protobuf", VALID),
)
KINDS: tuple[Callable[[random.Random], FuzzedRequest], ...] = (
    as_json,
    as_json,
    as_bytes,
    as_binary,
    as_other_request,
)


@pytest.mark.timeout(400)
def test_damaged_requests_cause_no_server_errors_or_leaks(server: Server) -> None:
    rng = random.Random(20261121)  # noqa: S311
    codes: Counter[int] = Counter()
    deaths = value(server.metrics, "inference_worker_deaths_total")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    memory = []
    for number in range(COUNT):
        if number % (COUNT // 5) == 0:
            memory.append(private_bytes(server))
        path, body, headers = rng.choice(KINDS)(rng)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        content = response.read()
        codes[response.status] += 1
        message = (
            f"{path} {headers} {body[:2000]!r} was answered {response.status}: {content[:500]!r}"
        )
        deadline_codes = {DEADLINE_PASSED} if "X-Request-Timeout" in headers else set()
        assert response.status in ALLOWED | deadline_codes, message
        if response.status != 200:
            assert list(json.loads(content)) == ["error"], message
    connection.close()
    assert codes[400] > COUNT / 2
    assert codes[200] > 0
    assert server.ready.status_code == 200
    assert value(server.metrics, "inference_worker_deaths_total") == deaths
    # The first fifth of the requests fills the caches, so its growth is not counted.
    assert private_bytes(server) - memory[1] < 32 * 2**20, memory
