from pathlib import Path

from tools.bench.run_curves import attempts, draw, throughput

FIRST = [
    '2026-11-21T21:00:00Z {"event": "start", "batch_size": 32, "processes": 2}',
    *(
        f'2026-11-21T21:00:{10 + step:02}Z {{"event": "step", "step": {step}, "loss": {9 - step}}}'
        for step in range(1, 9)
    ),
]
SECOND = [
    '2026-11-21T21:00:30Z {"event": "resume", "batch_size": 32, "processes": 2, "step": 6}',
    "2026-11-21T21:00:30Z a line without an event",
    *(
        f'2026-11-21T21:00:{25 + step:02}Z {{"event": "step", "step": {step}, "loss": {9 - step}}}'
        for step in range(7, 9)
    ),
]


def test_attempts_are_separated_regardless_of_file_order() -> None:
    first, second = attempts([*SECOND, *FIRST])
    assert (first.resumed_at, first.end, len(first.losses)) == (0, 18.0, 8)
    assert (second.resumed_at, second.start, second.losses) == (6, 30.0, (2.0, 1.0))


def test_throughput_counts_the_samples_of_all_processes() -> None:
    seconds, rates = throughput(attempts(FIRST)[0])
    assert set(rates) == {64.0}
    assert seconds[0] == 12.0


def test_epochs_are_used_if_no_steps_are_logged() -> None:
    lines = [
        '2026-11-21T21:00:00Z {"event": "start", "batch_size": 32}',
        '2026-11-21T21:00:10Z {"event": "epoch", "epoch": 1, "samples": 1000, "loss": 2.0}',
        '2026-11-21T21:00:20Z {"event": "epoch", "epoch": 2, "samples": 1000, "loss": 1.0}',
    ]
    [only] = attempts(lines)
    assert only.losses == (2.0, 1.0)
    assert throughput(only) == ([20.0], [100.0])


def test_log_without_run_events_has_no_attempts() -> None:
    assert attempts(["hello", "2026-11-21T21:00:00Z {}"]) == []


def test_the_chart_shows_when_training_resumed(tmp_path: Path) -> None:
    draw(attempts([*FIRST, *SECOND]), tmp_path / "a.svg")
    draw(attempts([*FIRST, *SECOND]), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "after step 6" in (tmp_path / "a.svg").read_text()
