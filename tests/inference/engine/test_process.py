import asyncio
import errno
import gc
import mmap
import multiprocessing.context
import os
import socket
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from inference.config import InferenceConfig
from inference.engine import process
from inference.engine.batching import Batch, Piece, Request
from inference.engine.interface import NUMPY
from inference.engine.process import (
    INITIAL_BYTES,
    MAX_MESSAGE_BYTES,
    Arena,
    Message,
    Worker,
    WorkerSpec,
    receive,
    send,
)
from tests.inference.engine.exports import sample
from tests.inference.engine.probes import FINE, confuse_batches, send_too_much
from workload.manifest import read_manifest

NUMBERS = [dtype for name, dtype in NUMPY.items() if name != "BYTES"]


@given(
    st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
    st.randoms(use_true_random=False),
)
def test_arrays_of_a_batch_are_concatenated_in_the_arena(
    dtypes: list[np.dtype[Any]], counts: list[int], shape: tuple[int, ...], random: Any
) -> None:
    arena = Arena.create()
    arrays = {
        f"input {index}": [
            np.frombuffer(random.randbytes(count * int(np.prod(shape)) * 8), np.uint8)[
                : count * int(np.prod(shape))
            ]
            .astype(dtype)
            .reshape(count, *shape)
            for count in counts
        ]
        for index, dtype in enumerate(dtypes)
    }
    views = arena.get(arena.put(arrays))
    for name, parts in arrays.items():
        assert views[name].dtype == parts[0].dtype
        assert np.array_equal(views[name], np.concatenate(parts))
    arena.close()


@given(st.lists(st.lists(st.binary(max_size=9), min_size=2, max_size=2), min_size=1, max_size=5))
def test_bytes_elements_are_preserved(rows: list[list[bytes]]) -> None:
    arena = Arena.create()
    parts = []
    for row in rows:
        part = np.empty((1, 2), np.object_)
        part[0] = row
        parts.append(part)
    (view,) = arena.get(arena.put({"texts": parts})).values()
    assert view.tolist() == rows
    arena.close()


def test_older_views_stay_valid_when_an_arena_grows() -> None:
    arena = Arena.create()
    small = arena.get(arena.put({"x": [np.arange(4)]}))["x"]
    large = np.arange(INITIAL_BYTES)
    placed = arena.put({"x": [large], "y": [large + 1]})
    assert np.array_equal(arena.get(placed)["y"], large + 1)
    assert len(small) == 4
    arena.close()


def test_an_arena_that_cannot_grow_keeps_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    arena, large = Arena.create(), {"x": [np.zeros(INITIAL_BYTES)]}
    reader = Arena(os.dup(arena._descriptor))
    with monkeypatch.context() as patch:
        patch.setattr("inference.engine.process.mmap.mmap", fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            arena.put(large)
    assert os.fstat(arena._descriptor).st_size == INITIAL_BYTES
    assert reader.get(arena.put({"x": [np.arange(4)]}))["x"].tolist() == [0, 1, 2, 3]
    placed = arena.put(large)
    assert len(reader.get(placed)["x"]) == INITIAL_BYTES
    arena.close()
    reader.close()


def test_callback_runs_whenever_an_arena_is_mapped_again() -> None:
    arena = Arena.create()
    mapped: list[NDArray[np.uint8] | None] = []
    arena.on_map(mapped.append)
    arena.put({"x": [np.arange(INITIAL_BYTES, dtype=np.int64)]})
    released, first, released_again, second = mapped
    assert released is released_again is None
    assert first is not None
    assert second is not None
    assert (len(first), len(second)) == (INITIAL_BYTES, 8 * INITIAL_BYTES)
    assert second[:9:8].tolist() == [0, 1]
    arena.close()


def test_array_type_without_a_protocol_datatype_is_refused() -> None:
    arena = Arena.create()
    with pytest.raises(KeyError):
        arena.put({"x": [np.zeros(1, np.complex64)]})
    arena.close()


def test_message_longer_than_the_limit_is_an_error() -> None:
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with receiver, sender:
        send(sender, {"text": "x" * (MAX_MESSAGE_BYTES - len('{"text":""}'))})
        send(sender, {"text": "x" * MAX_MESSAGE_BYTES})
        assert receive(receiver)
        with pytest.raises(ValueError, match="more than 131072 bytes"):
            receive(receiver)


def spec_of(probe: Path) -> WorkerSpec:
    config = InferenceConfig(model_name="probe", model_path=PurePosixPath(probe), device="cpu")
    return WorkerSpec(config, read_manifest(probe), 0, 1, probe)


def open_files() -> int:
    # Unreferenced objects of earlier tests may still hold files.
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def out_of_memory(*_: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (os, "ftruncate"),
        (mmap, "mmap"),
        (socket, "socketpair"),
        (multiprocessing.context.ForkServerProcess, "start"),
    ],
)
async def test_failed_worker_start_leaves_no_open_files(
    owner: object, name: str, probe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(int)  # starts the event loop's thread pool
    worker = Worker(spec_of(probe), lambda *_: None, lambda *_: None)
    files_before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, out_of_memory)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            await worker.start()
    assert open_files() == files_before


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (confuse_batches, "it sent a result for a batch other than the first one"),
        (send_too_much, "it sent a message that cannot be read: it has more than 131072 bytes"),
    ],
)
async def test_worker_that_sends_an_invalid_result_is_killed(
    run: Callable[..., None], reason: str, probe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_run", run)
    results: list[Message] = []
    end_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    worker = Worker(
        spec_of(probe),
        lambda _, message: results.append(message),
        lambda _, actual: end_reason.set_result(actual),
    )
    await worker.start()
    await worker.loaded
    request = Request(sample(FINE), asyncio.Future(), 0, 0)
    worker.compute(Batch([Piece(request, 0, 1)], 1))
    async with asyncio.timeout(60):
        assert await end_reason == reason
    assert worker.exit_reason
    assert results == []
