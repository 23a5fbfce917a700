"""Fuzzing with damaged requests, and conformance to the OpenAPI description."""

import http.client
import json
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inference.serving import INFER, Server, own_bytes, request_of, value

COUNT = int(os.environ.get("FUZZ_REQUESTS", "2500"))
"""Number of requests; four of five are V2 inference requests."""
ALLOWED = {200, 400, 404, 408, 413, 415, 429}
LATE = 504
"""Also allowed if the request names a deadline."""

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 1.5, -0.0, 1e38, 1e308,
    "", "images", "FP32", "INT64", "BYTES", "\x00", "é" * 50, "9" * 400, [], {}, [[]], [[[[]]]],
    [None], [True], ["1"], [{}], [1, [2]], {"name": "images"}, {"binary_data_size": 256},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document, only the first few of long lists."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:3]):
            found += places(inner, (*path, index))
    return found


def change(document: Any, chance: random.Random) -> Any:
    """Replace, remove, duplicate, wrap or rename one value."""
    *way, last = chance.choice(places(document)[1:])
    owner = document
    for key in way:
        owner = owner[key]
    what = chance.randrange(5)
    if what == 0:
        owner[last] = deepcopy(chance.choice(ODD))
    elif what == 1:
        del owner[last]
    elif what == 2:
        owner[last] = [owner[last]]
    elif what == 3 and isinstance(owner, dict):
        owner[chance.choice(["", "data", "shape", "x", "parameters"])] = owner.pop(last)
    elif isinstance(owner, list):
        owner.insert(0, deepcopy(chance.choice(ODD)))
    else:
        owner[last] = [owner[last], owner[last]]
    return document


def damage(body: bytes, chance: random.Random) -> bytes:
    """Flip, insert, remove or truncate bytes."""
    content = bytearray(body)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(content) + 1)
        what = chance.randrange(4)
        if what == 0 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            content[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif what == 2:
            del content[at : at + chance.randrange(1, 20)]
        else:
            content = content[: max(at, 1)]
    return bytes(content)


Asked = tuple[str, bytes, dict[str, str]]


def as_json(chance: random.Random) -> Asked:
    document: Any = json.loads(VALID)
    for _ in range(chance.randrange(1, 4)):
        if len(places(document)) > 1:
            document = change(document, chance)
    return INFER, json.dumps(document).encode(), {}


def as_bytes(chance: random.Random) -> Asked:
    return INFER, damage(VALID, chance), {}


def as_binary(chance: random.Random) -> Asked:
    document = json.loads(BINARY)
    if chance.random() < 0.6:
        document = change(document, chance)
    head, blob = json.dumps(document).encode(), struct.pack("<64f", *[0.5] * 64)
    length = str(len(head) + chance.choice([0, 0, 0, 1, -1, 5000]))
    if chance.random() < 0.2:
        length = chance.choice(["", "x", "-1", "0", "1e3", "9" * 30, " 7", str(len(head))])
    if chance.random() < 0.5:
        blob = damage(blob, chance)
    return INFER, head + blob, {"Inference-Header-Content-Length": length}


def elsewhere(chance: random.Random) -> Asked:
    path, kind, body = chance.choice(OTHERS)
    headers = {"Content-Type": kind} if kind else {}
    if chance.random() < 0.3:
        headers["X-Request-Timeout"] = chance.choice(["0", "-1", "nan", "inf", "1e-9", "x", "5"])
    return path, damage(body, chance), headers


IMAGE = np.full((1, 1, 8, 8), 0.5, np.float32)
VALID = json.dumps(
    request_of(IMAGE, id="a", parameters={"x": 1}, outputs=[{"name": "label"}])
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
OTHERS = (
    ("/v2/models/digits/versions/1/infer", "", VALID),
    ("/v2/models/other/infer", "", VALID),
    (INFER, "application/x-protobuf", VALID),
)
KINDS: tuple[Callable[[random.Random], Asked], ...] = (
    as_json,
    as_json,
    as_bytes,
    as_binary,
    elsewhere,
)


@pytest.mark.timeout(400)
def test_no_damaged_request_causes_a_500_or_a_leak(server: Server) -> None:
    chance = random.Random(20261121)  # noqa: S311
    codes: Counter[int] = Counter()
    deaths = value(server.metrics, "inference_worker_deaths_total")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    memory = []
    for number in range(COUNT):
        if number % (COUNT // 5) == 0:
            memory.append(own_bytes(server))
        path, body, headers = chance.choice(KINDS)(chance)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        content = response.read()
        codes[response.status] += 1
        message = (
            f"{path} {headers} {body[:2000]!r} was answered {response.status}: {content[:500]!r}"
        )
        late = {LATE} if "X-Request-Timeout" in headers else set()
        assert response.status in ALLOWED | late, message
        if response.status != 200:
            assert list(json.loads(content)) == ["error"], message
    connection.close()
    assert codes[400] > COUNT / 2
    assert codes[200] > 0
    assert server.ready.status_code == 200
    assert value(server.metrics, "inference_worker_deaths_total") == deaths
    # The first part fills caches.
    assert own_bytes(server) - memory[1] < 32 * 2**20, memory


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
"""504 is the answer if the generated deadline has passed."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("port", ["clients", "administration"])
def test_the_server_conforms_to_its_openapi_description(
    server: Server, tmp_path: Path, port: str
) -> None:
    client = server.client if port == "clients" else server.admin
    program = Path(sys.prefix) / "bin/schemathesis"
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    ended = subprocess.run(
        [
            *(str(program), "run", f"{client.base_url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "15", "--seed", "1", "--no-shrink", "--no-color"),
            *("--generation-database", "none", "--request-timeout", "30", "--warnings", "off"),
            *("--suppress-health-check", "all"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-1000:]
