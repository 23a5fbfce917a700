"""A scripted pull request: the comment about a change, with the real engine and pack."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from devcluster.toolchain import Toolchain
from tests.engine.conftest import MakeStack, Stack

PASSWORD = "correct-horse-battery"
TOKEN = "tok_en*<42>@staple"


@dataclass(frozen=True)
class Previewed:
    """Result of the command, and the files that it wrote."""

    status: int
    output: str
    folder: Path

    @property
    def comment(self) -> str:
        return (self.folder / "comment.md").read_text()

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found


def gitops(
    stack: Stack, out: Path, *arguments: str, environment: dict[str, str] | None = None
) -> Previewed:
    """`python -m gitops preview` with the stack's own configuration and backend."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gitops", "preview", "--stack", "simulated"),
            *("--config-file", str(stack._file), "--out", str(out), *arguments),
        ],
        cwd=CHECKOUT,
        env=environment or stack._environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    return Previewed(done.returncode, done.stdout, out)


def merged(config: dict[str, Any]) -> None:
    """Add the settings of the base that the environment's file lacks: a login for the registry."""
    config["gpu-platform:images"] |= {"registry": "127.0.0.1:5000", "username": "robot"}


def proposed(config: dict[str, Any]) -> None:
    """Add four GPUs, move a claim to another volume and use an image from a forbidden registry."""
    config["gpu-platform:training"]["jobs"]["sweep"] |= {"nodes": 3, "env": {"TOKEN": "abc"}}
    storage = config["gpu-platform:storage"]
    storage["volumes"]["shared-other"] = dict(storage["volumes"]["shared-checkpoints"])
    storage["claims"]["checkpoints"]["volume"] = "shared-other"
    image = f"docker.io/somebody/inference@sha256:{'0' * 64}"
    config["gpu-platform:images"]["workloads"]["inference"]["reference"] = image


def secret(stack: Stack, *arguments: str) -> None:
    options = ("--stack", stack._name, "--config-file", str(stack._file))
    outcome = stack._command("config", "set", "--secret", *options, *arguments, cwd=stack._folder)
    assert outcome.status == 0, outcome.text


@pytest.fixture(scope="module")
def base(engine: MakeStack) -> Stack:
    """An applied stack that contains a secret."""
    stack = engine("simulated", merged)
    document = stack._file.read_text().split("encryptionsalt")[0]
    stack._file.write_text(document)
    made = stack._command("stack", "init", "simulated", cwd=stack._folder)
    assert made.status == 0, made.text
    secret(stack, "registry_password", PASSWORD)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    return stack


@pytest.fixture(scope="module")
def unchanged(base: Stack, tmp_path_factory: pytest.TempPathFactory) -> Previewed:
    return gitops(base, tmp_path_factory.mktemp("unchanged"))


@pytest.fixture(scope="module")
def pull_request(
    base: Stack, unchanged: Previewed, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Previewed, Previewed]:
    """The proposed change, previewed twice at the same time."""
    base.edit(proposed)
    secret(base, "registry_password", TOKEN)
    folders = [tmp_path_factory.mktemp("pull") for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda folder: gitops(base, folder), folders)
    return first, second


def test_preview_of_an_unchanged_stack_has_a_distinct_exit_status(unchanged: Previewed) -> None:
    assert unchanged.status == 0, unchanged.output
    assert "Preview of `simulated`: nothing changes" in unchanged.comment
    assert unchanged.report["differences"] == []


def test_comment_on_the_pull_request_contains_each_fact(
    pull_request: tuple[Previewed, Previewed],
) -> None:
    previewed, _ = pull_request
    comment = previewed.comment
    assert previewed.status == 3, previewed.output
    for fact in (
        "Preview of `simulated`: blocked by 2 violations",
        "- Claim `checkpoints` is replaced, because `spec.volumeName` cannot be changed in place.",
        "| `research` | `simulated` | 24 | 28 | +4 |",
        "may hold 8 more GPUs in `research` until they end",
        "| quota of ml-simulated | `requests.nvidia.com/gpu` | 30 | 32 | 2 |",
        "`image-registry-allowed`: Deployment",
        "`no-literal-secrets`: Job",
        "Remedy: Push the image to an allowed registry, or allow its registry.",
        "-  volumeName: shared-checkpoints",
        "+  volumeName: shared-other",
        "-        - --nnodes=2",
        "+        - --nnodes=3",
    ):
        assert fact in comment, comment
    assert comment.index("Check this first") < comment.index("### Policies")


def test_two_concurrent_previews_are_identical(
    pull_request: tuple[Previewed, Previewed],
) -> None:
    first, second = pull_request
    assert first.status == second.status == 3
    assert first.comment == second.comment
    assert first.report == second.report


def test_rendered_files_contain_no_secret(
    pull_request: tuple[Previewed, Previewed],
) -> None:
    previewed, _ = pull_request
    text = previewed.comment + (previewed.folder / "report.json").read_text() + previewed.output
    assert "Secret registry" in text
    # No part of the secret may appear, literally or escaped for Markdown, JSON or HTML.
    for part in (PASSWORD, "horse", TOKEN, "tok_en", "tok\\_en", "staple"):
        assert part not in text


def test_rendered_preview_requires_no_state_cluster_or_secrets(
    pull_request: tuple[Previewed, Previewed], base: Stack, tools: Toolchain, tmp_path: Path
) -> None:
    live, _ = pull_request
    stranger = {
        "PATH": base._environment["PATH"],
        "HOME": os.environ["HOME"],
        "PULUMI_HOME": str(tools.pulumi_home),
    }
    rendered = gitops(base, tmp_path, "--rendered", "--base", "HEAD", environment=stranger)
    assert rendered.status == 3, rendered.output
    assert "compared with `HEAD`" in rendered.comment
    assert "- Claim `checkpoints` is replaced" in rendered.comment
    gpus = [
        {(row["queue"], row["now"], row["after"]) for row in previewed.report["gpus"]}
        for previewed in (live, rendered)
    ]
    assert gpus[0] == gpus[1]


def test_invalid_configuration_is_reported_in_the_comment(
    engine: MakeStack, tmp_path: Path
) -> None:
    def mistake(config: dict[str, Any]) -> None:
        config["gpu-platform:training"]["jobs"]["digits"]["gpu_per_node"] = 8

    stack = engine("simulated", mistake)
    failed = gitops(stack, tmp_path, "--rendered")
    assert failed.status == 1, failed.output
    assert "the preview failed" in failed.comment
    assert "did you mean 'gpus_per_node'?" in failed.comment


SECRETS = (
    "training.jobs.digits.env.TOKEN",
    "training.jobs.sweep.command[2]",
    "inference.services.digits.env.TOKEN",
    "images.workloads.training.reference",
)
"""Settings into which a user might write a secret."""


def test_secret_in_a_section_is_rejected_and_not_written_to_any_file(
    engine: MakeStack, tmp_path: Path
) -> None:
    stack = engine("simulated")
    applied = stack.up()
    assert applied.status == 0, applied.text
    for path in SECRETS:
        stack.set_secret(path, PASSWORD)
    outcomes = [stack.preview(), stack.up()]
    live = gitops(stack, tmp_path / "live")
    rendered = gitops(stack, tmp_path / "rendered", "--rendered")
    assert all(outcome.status != 0 for outcome in outcomes)
    assert live.status != 0
    assert rendered.status != 0
    output = [*(each.text for each in outcomes), live.comment, rendered.comment]
    for text in output:
        for section in ("training", "inference", "images"):
            assert f"gpu-platform:{section} contains a secret" in text
        assert "env_from" in text
    # The stack's directory contains the state, its history and backups, and rendered manifests.
    assert not stack.contains(PASSWORD)
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) >= 4, "comment.md and report.json of two previews"
    assert all(PASSWORD not in text for text in (*output, *written, live.output, rendered.output))


BROKEN_RULE = """
from policies.rule import Level, RuleConfig, Severity, pod_rule


@pod_rule(
    name="broken",
    description="A rule with a mistake.",
    severity=Severity.LOW,
    level=Level.MANDATORY,
    remediation="None.",
    config=RuleConfig,
)
def broken(pod, config):
    \"\"\"It raises.\"\"\"
    raise ZeroDivisionError("a mistake of the rule")
"""


@pytest.mark.parametrize(
    ("rules", "status", "headline", "reason"),
    [
        (BROKEN_RULE, 3, "blocked by", "ZeroDivisionError: a mistake of the rule"),
        ("import nothing_like_it", 1, "the preview failed", "nothing_like_it"),
    ],
    ids=["a rule raises an exception", "the rules cannot be loaded"],
)
def test_a_broken_policy_pack_is_reported_in_the_comment(
    base: Stack, tmp_path: Path, rules: str, status: int, headline: str, reason: str
) -> None:
    file = tmp_path / "rules.py"
    file.write_text(rules)
    environment = {**base._environment, "GPU_POLICIES_RULES": str(file)}
    failed = gitops(base, tmp_path / "out", environment=environment)
    assert failed.status == status, failed.output
    assert headline in failed.comment
    assert reason in failed.comment


def test_a_wrong_passphrase_is_reported_in_the_comment(base: Stack, tmp_path: Path) -> None:
    environment = {**base._environment, "PULUMI_CONFIG_PASSPHRASE": "wrong"}
    failed = gitops(base, tmp_path, environment=environment)
    assert failed.status == 1, failed.output
    assert "the preview failed" in failed.comment
    assert "PULUMI_CONFIG_PASSPHRASE" in failed.comment
    assert "Traceback" not in failed.output


def test_an_unknown_base_is_reported_in_the_comment(base: Stack, tmp_path: Path) -> None:
    failed = gitops(base, tmp_path, "--rendered", "--base", "nowhere")
    assert failed.status == 1, failed.output
    assert "the base 'nowhere' is not a revision" in failed.comment.replace("\\", "")
