"""A language model's tokens, all at once and as server-sent events."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
import torch

from tests.inference.engine.exports import write_model
from tests.inference.serving import Server, serving
from tests.training.programs import until
from training.models import build

GENERATE = "/v2/models/words/generate"
OPTIONS = {"context": 16, "layers": 1, "heads": 2, "width": 16}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a small model of 32 tokens, which was not trained."""
    folder = tmp_path_factory.mktemp("words")
    torch.manual_seed(0)
    network = build("gpt", OPTIONS, 32, (16,))
    described = {"model": "gpt", "options": OPTIONS, "outputs": 32, "input_dtype": "int64"}
    write_model(folder / "export", network, input_shape=(16,), **described)
    with serving(folder, folder / "export", name="words") as running:
        running.wait_until_ready()
        yield running


def events(response: httpx.Response) -> list[dict[str, object]]:
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_a_stream_has_the_tokens_of_the_whole_answer(words: Server) -> None:
    asked = {"id": "mine", "tokens": [1, 2, 3], "parameters": {"max_tokens": 12}}
    whole = words.client.post(GENERATE, json=asked).json()
    assert (whole["id"], len(whole["tokens"])) == ("mine", 12)
    stream = words.client.post(f"{GENERATE}_stream", json=asked)
    assert stream.headers["content-type"] == "text/event-stream"
    told = events(stream)
    assert [event["token"] for event in told] == whole["tokens"]
    assert [event["index"] for event in told] == list(range(12))


def test_what_is_wrong_from_the_beginning_is_no_stream(words: Server) -> None:
    for asked in ({"tokens": [99]}, {"tokens": []}, {"tokens": [1], "top_k": -1}):
        response = words.client.post(f"{GENERATE}_stream", json=asked)
        assert response.status_code == 400
        assert list(response.json()) == ["error"]


def test_a_deadline_within_a_stream_is_its_last_event(words: Server) -> None:
    asked = {"tokens": [1], "max_tokens": 60_000}
    late = {"X-Request-Timeout": "0.5"}
    told = events(words.client.post(f"{GENERATE}_stream", json=asked, headers=late))
    assert "token" in told[0]
    assert "error" in told[-1]


def test_a_stream_whose_client_has_gone_ends(words: Server) -> None:
    body = json.dumps({"tokens": [1], "max_tokens": 60_000}).encode()
    head = f"POST {GENERATE}_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", words.port), 30) as gone:
        gone.sendall(head.encode() + body)
        assert gone.recv(100).startswith(b"HTTP/1.1 200")
        assert words.in_flight == 1
    until(lambda: words.in_flight == 0)


def test_a_model_of_tokens_takes_no_images(words: Server) -> None:
    response = words.client.post("/predict", content=b"x", headers={"Content-Type": "image/png"})
    assert response.status_code == 400
    assert "takes no images" in response.json()["error"]
    one = words.client.post("/predict", json=[1, 2, 3])
    assert len(one.json()["predictions"][0]["logits"]) == 3
