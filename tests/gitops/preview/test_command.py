import argparse
import json
from collections.abc import Callable
from pathlib import Path

from gitops.engine import Ended, Stack
from gitops.preview import command
from tests.gitops import plans


class Engine:
    """A preview that has ended."""

    def __init__(self, log: Path, *events: dict) -> None:
        self.log = log
        log.write_text("".join(json.dumps(event) + "\n" for event in events))

    def wait(self, progress: Callable[[int], None]) -> Ended:
        progress(1)
        return Ended(255, "said")


def test_a_policy_pack_that_fails_to_start_is_reported_consistently(tmp_path: Path) -> None:
    comments = []
    for name in ("gpu-platform-pack-one", "gpu-platform-pack-other"):
        pack = tmp_path / name
        problem = plans.said("error", f'policy pack "{pack}" failed to start')
        engine = Engine(tmp_path / "events", problem, plans.summary("failed"))
        options = argparse.Namespace(
            stack="prod", rendered=True, refresh=False, base=None, prices=None, out=tmp_path
        )
        assert command.report(options, Stack("prod", tmp_path), engine, pack) == "failed"
        comments.append((tmp_path / "comment.md").read_text())
    assert comments[0] == comments[1]
    assert "policies" in comments[0]
    assert "gpu-platform-pack" not in comments[0]
