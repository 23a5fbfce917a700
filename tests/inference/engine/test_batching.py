"""Order of queued requests, and limits on each client's share of the queue."""

import asyncio
import weakref

import numpy as np
import pytest

from inference.engine.batching import Queue, Request
from inference.engine.interface import OverloadedError


def request(peer: str, samples: int = 1, width: int = 1) -> Request:
    inputs = {"x": np.zeros((samples, width), np.float32)}
    return Request(inputs, asyncio.get_running_loop().create_future(), 0.0, 100.0, peer)


def put(queue: Queue, *requests: Request) -> None:
    for each in requests:
        queue.put(each, 1.0)


def take_batch(queue: Queue) -> list[Request]:
    return [piece.request for piece in queue.take(1.0).pieces]


def evicted(request: Request) -> bool:
    return request.future.done() and isinstance(request.future.exception(), OverloadedError)


async def test_requests_of_one_client_are_served_in_order() -> None:
    queue, requests = Queue(2, 10, 1000), [request("a") for _ in range(3)]
    put(queue, *requests)
    assert take_batch(queue) == requests[:2]
    assert take_batch(queue) == requests[2:]
    assert not queue.samples


async def test_clients_take_turns_in_the_queue() -> None:
    queue, first, later = Queue(2, 10, 1000), [request("a") for _ in range(4)], request("b")
    put(queue, *first, later)
    assert take_batch(queue) == [first[0], later]
    assert take_batch(queue) == first[1:3]


async def test_order_of_a_client_is_kept_when_a_batch_is_returned_to_the_queue() -> None:
    queue, requests = Queue(2, 10, 1000), [request("a") for _ in range(3)]
    put(queue, *requests)
    batch = queue.take(1.0)
    queue.put_back(batch)
    assert queue.samples == 3
    assert take_batch(queue) == requests[:2]


async def test_full_queue_evicts_the_newest_request_of_the_largest_client() -> None:
    queue, many, few = Queue(1, 4, 1000), [request("a") for _ in range(4)], request("b")
    put(queue, *many, few)
    assert [evicted(each) for each in many] == [False, False, False, True]
    assert queue.samples == 4
    assert take_batch(queue) == [many[0]]
    assert take_batch(queue) == [few]


async def test_full_queue_refuses_requests_of_the_largest_client() -> None:
    queue, many = Queue(1, 4, 1000), [request("a") for _ in range(4)]
    put(queue, *many)
    with pytest.raises(OverloadedError, match="4 samples are queued"):
        put(queue, request("a"))
    put(queue, request("b"), request("b"))
    with pytest.raises(OverloadedError):
        put(queue, request("b"))
    assert queue.samples == 4


async def test_full_memory_evicts_requests_of_the_client_with_the_most_bytes() -> None:
    queue = Queue(8, 100, 400)
    large, small = request("a", width=80), [request("b") for _ in range(5)]
    put(queue, *small, large)
    later = request("c", width=20)
    put(queue, later)
    assert evicted(large)
    assert take_batch(queue) == small
    assert take_batch(queue) == [later]
    assert not queue.samples
    put(queue, request("a", width=100))


async def test_evicted_and_canceled_requests_are_not_counted() -> None:
    queue, many = Queue(1, 4, 1000), [request("a") for _ in range(4)]
    put(queue, *many)
    many[2].future.cancel()
    put(queue, request("b"))
    queue.drop(many[2])
    queue.drop(many[3])
    assert queue.samples == 3
    while queue.samples:
        take_batch(queue)
    put(queue, request("a", samples=4))


async def test_a_request_split_into_pieces_is_evicted_as_a_whole() -> None:
    queue, large, later = Queue(2, 6, 1000), request("a", samples=6), request("b", samples=2)
    put(queue, large)
    assert take_batch(queue) == [large]
    put(queue, request("b", samples=1), later)
    assert evicted(large)
    assert queue.samples == 3


async def test_estimated_queue_length_includes_the_turns_of_other_clients() -> None:
    queue = Queue(2, 100, 1000)
    put(queue, *(request("a") for _ in range(10)))
    assert queue.samples_before(request("a")) == 10
    assert queue.samples_before(request("b")) == 1
    put(queue, request("b"))
    assert queue.samples_before(request("b", samples=2)) == 4


async def test_requests_with_equal_shapes_share_a_batch_and_skip_other_shapes() -> None:
    queue = Queue(4, 100, 1000)
    first, wide, last = [request("a"), request("a")], request("b", width=2), request("c")
    put(queue, *first, wide, last)
    assert take_batch(queue) == [first[0], last, first[1]]
    assert take_batch(queue) == [wide]


async def test_remainder_of_a_large_request_is_first_in_the_next_batch() -> None:
    queue = Queue(4, 100, 1000)
    small, large = [request("a") for _ in range(6)], request("b", samples=4)
    put(queue, *small, large)
    assert take_batch(queue) == small[:4]
    assert take_batch(queue) == [large]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_canceled_and_expired_requests_are_released_before_the_next_batch(
    cancelled: bool,
) -> None:
    queue, ended, other = Queue(2, 10, 1000), request("a", samples=3), request("a")
    released = weakref.ref(ended.inputs["x"])
    put(queue, ended)
    if cancelled:
        ended.future.cancel()
        queue.drop(ended)
    else:
        queue.expire(now=101.0)
    del ended
    assert released() is None
    put(queue, other)
    assert take_batch(queue) == [other]


async def test_pieces_get_copies_of_only_the_rows_and_outputs_that_they_need() -> None:
    queue = Queue(8, 10, 1000)
    both, large, gone = request("a", samples=2), request("b"), request("c")
    large.output_names = frozenset({"large"})
    put(queue, both, large, gone)
    batch = queue.take(1.0)
    gone.future.cancel()
    outputs = {"value": np.arange(4), "large": np.ones((4, 1000))}
    first, second, third = batch.split(outputs)
    assert first["value"].tolist() == [0, 1]
    assert first["large"].shape == (2, 1000)
    assert list(second) == ["large"]
    assert not third
    # A view would keep the rows of all clients in memory.
    assert all(array.base is None for part in (first, second) for array in part.values())
