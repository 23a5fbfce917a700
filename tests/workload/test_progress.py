"""Progress events as written by programs and parsed by their readers."""

import json

import pytest

from workload.progress import (
    Epoch,
    Event,
    Failed,
    Finished,
    Message,
    Preflight,
    SlowNode,
    Started,
    Step,
    parse,
)


def start() -> Started:
    fields = {"model": "digits-net", "epochs": 15, "lr": 0.1, "batch_size": 64, "processes": 2}
    return Started.model_validate({"event": "start", **fields})


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            start(),
            {
                "event": "start",
                "model": "digits-net",
                "lr": 0.1,
                "epochs": 15,
                "batch_size": 64,
                "processes": 2,
            },
        ),
        (Step(step=3, loss=0.5), {"event": "step", "step": 3, "loss": 0.5}),
        (
            Epoch(epoch=1, epochs=2, samples=7, loss=0.5, accuracy=0.9),
            {"event": "epoch", "epoch": 1, "epochs": 2, "samples": 7, "loss": 0.5, "accuracy": 0.9},
        ),
        (
            Finished(accuracy=0.97, already=False),
            {"event": "finished", "accuracy": 0.97, "already": False},
        ),
        (
            Failed(message="no data", rank="0", exit_code=64),
            {"event": "error", "message": "no data", "rank": "0", "exit_code": 64},
        ),
        (Message(event="warning", message="full"), {"event": "warning", "message": "full"}),
        (
            Preflight.model_validate({"seconds": 0.5, "all_reduce": 900, "matmul": 40.5}),
            {"event": "preflight", "matmul": 40.5, "seconds": 0.5, "all_reduce": 900},
        ),
        (
            SlowNode(node="b", rank=1, measurement="matmul", value=4, median=40, unit="GFLOP/s"),
            {
                "event": "slow_node",
                "node": "b",
                "rank": 1,
                "measurement": "matmul",
                "value": 4,
                "median": 40,
                "unit": "GFLOP/s",
            },
        ),
    ],
)
def test_event_is_written_as_one_line_and_parsed_back(
    event: Event, line: dict[str, object]
) -> None:
    assert json.loads(json.dumps(event.line())) == line
    assert list(event.line()) == list(line)
    read = parse(json.dumps(line))
    assert read is not None
    assert (type(read), read.line()) == (type(event), line)


def test_custom_program_may_omit_and_add_fields() -> None:
    event = parse('{"event": "finished", "step": 20, "held_out_loss": 0.25}')
    assert isinstance(event, Finished)
    assert (event.accuracy, event.seconds) == (None, None)


@pytest.mark.parametrize("line", ["", "42", "null", '"event"', '["event"]', '{"other": 1}', "{"])
def test_lines_that_are_not_valid_events_are_ignored(line: str) -> None:
    assert parse(line) is None
    assert parse('{"event": "epoch", "epoch": "many"}') is None
