from decimal import Decimal
from typing import Any

import pytest

from gitops import prices
from gitops.preview import markdown
from gitops.preview.build import build
from gitops.preview.markdown import MAX_LENGTH, marker, render
from gitops.preview.report import Report
from tests.gitops import plans

TABLE = prices.load()


def report(*steps: dict[str, Any], result: str = "succeeded", **options: Any) -> Report:
    return build(plans.plan(*steps, result=result), stack="prod", prices=TABLE, **options)


def pull_request() -> Report:
    job = plans.volcano_job
    return report(
        plans.same(plans.queue()),
        plans.step("delete", job("run-00000000", pods=2, gpus=4), retain=True),
        plans.step("create", new=job("run-11111111", pods=3, gpus=4)),
        plans.step("replace", plans.claim(), plans.claim(volume="other"), keys=["spec.volumeName"]),
        plans.policy("no-host-path", "Pod x: found <script>; write @all a | b"),
        result="failed",
    )


def test_comment_starts_with_a_marker_for_its_stack() -> None:
    assert render(pull_request()).startswith("<!-- gpu-platform preview prod -->\n")
    assert marker("drift", "prod") != marker("preview", "prod") != marker("preview", "dev")


def test_the_comment_contains_what_a_reviewer_needs() -> None:
    comment = render(pull_request())
    for fact in (
        "blocked by 1 violation",
        "- Claim `checkpoints` is replaced",
        "- Training run `run-00000000` is removed from the stack",
        "| `research` | `NVIDIA-A800-SXM4-80GB` | 8 | 12 | +4 |",
        "may hold 8 more GPUs in `research`",
        "| per hour, all GPUs busy | 19.20 | 28.80 | +9.60 |",
        "| queue research | `nvidia.com/gpu` | 12 | 16 | 4 |",
        "**mandatory**, high `no-host-path`",
        "Remedy: ",
        "-  volumeName: shared",
        "+  volumeName: other",
    ):
        assert fact in comment
    assert comment.index("Check this first") < comment.index("### GPUs")


def test_rows_of_one_queue_state_the_role_unless_it_is_training() -> None:
    notebook = plans.volcano_job("anna-00000000", pods=1)
    notebook["metadata"]["labels"] = {"gpu-platform.dev/workload": "interactive"}
    comment = render(
        report(plans.step("create", new=plans.volcano_job()), plans.step("create", new=notebook))
    )
    assert "| `research` | `NVIDIA-A800-SXM4-80GB` | 0 | 2 | +2 |" in comment
    assert "| `research` (interactive) | `NVIDIA-A800-SXM4-80GB` | 0 | 1 | +1 |" in comment


def test_external_text_is_escaped() -> None:
    comment = render(pull_request())
    assert "<script>" not in comment
    assert "@all" not in comment
    assert "a \\| b" in comment


def test_a_diff_cannot_close_its_fence() -> None:
    job = plans.volcano_job()
    job["metadata"]["annotations"] = {"note": "```\n# free\n````"}
    comment = render(report(plans.step("create", new=job)))
    assert "`````diff" in comment


def test_a_long_comment_is_truncated_between_its_parts() -> None:
    steps = [
        plans.step("create", new=plans.volcano_job(f"run{index}-00000000", cpu="x" * 3000))
        for index in range(60)
    ]
    comment = render(report(*steps))
    assert len(comment) <= MAX_LENGTH
    assert comment.count("<details>") == comment.count("</details>") > 5
    assert "see `report.json`" in comment
    short = render(report(*steps), limit=700)
    assert len(short) <= 700
    assert short.startswith("<!-- gpu-platform preview prod -->")


def test_report_without_changes_is_short() -> None:
    comment = render(report(plans.same(plans.queue())))
    assert "nothing changes" in comment
    assert "###" not in comment.replace("### Quota", "")


def test_errors_are_shown_if_nothing_else_explains_the_failure() -> None:
    comment = render(
        report(plans.diagnostic("error", "The configuration has 1 problem"), result="failed")
    )
    assert "The configuration has 1 problem" in comment


def test_preview_that_stopped_early_is_reported() -> None:
    early = plans.plan(plans.diagnostic("error", "refused"), result="failed", complete=False)
    comment = render(build(early, stack="prod", prices=TABLE))
    assert "The preview stopped at an error." in comment
    assert "refused" in comment
    assert "stopped at an error" not in render(pull_request())


def test_rendered_preview_states_its_base() -> None:
    assert "not compared with a Git revision" in render(report(mode="rendered"))
    assert "and compared with `main`" in render(report(mode="rendered", base="main"))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a_b*c`d", "a\\_b\\*c\\`d"),
        ("<b>&</b>", "&lt;b&gt;&amp;&lt;/b&gt;"),
        ("@team", "@\u200bteam"),
        ("team/repository#1", "team/repository#\u200b1"),
        ("# title", "#\u200b title"),
        ("group/project!12, group&34", "group/project!\u200b12, group&amp;\u200b34"),
        ("!a & b != c&d", "!a &amp; b != c&amp;d"),
        ("$a$", "\\$a\\$"),
    ],
)
def test_plain_text_is_escaped(given: str, shown: str) -> None:
    assert markdown.plain(given) == shown


def test_inline_code_is_not_escaped() -> None:
    assert markdown.sentence("Claim `a_b` is_gone") == "Claim `a_b` is\\_gone"
    assert markdown.sentence("an odd ` tick") == "an odd \\` tick"


@pytest.mark.parametrize(
    ("resource", "value", "shown"),
    [
        ("requests.memory", 480 * 2**30, "480Gi"),
        ("requests.memory", 20 * 2**40, "20Ti"),
        ("requests.memory", -(2**29), "-512Mi"),
        ("requests.cpu", 20, "20"),
        ("pods", 0, "0"),
    ],
)
def test_amounts_use_readable_units(resource: str, value: int, shown: str) -> None:
    assert markdown.amount(Decimal(value), resource) == shown


@pytest.mark.parametrize("error", ["x" * 200_000, "line\n" * 40_000, "```\n" * 40_000])
def test_long_errors_are_truncated_within_a_closed_fence(error: str) -> None:
    failed = plans.plan(plans.diagnostic("error", error), result="failed", complete=False)
    shown = render(build(failed, stack="prod", prices=prices.load()))
    assert len(shown) <= MAX_LENGTH
    assert len(shown) > MAX_LENGTH - 1000
    before, fence, after = shown.rpartition("\n```")
    assert fence
    assert "More details do not fit" in after
    assert before.count("\n````text" if "`" in error else "\n```text") == 1
