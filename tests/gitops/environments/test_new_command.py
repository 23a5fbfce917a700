import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gitops.__main__ import main
from gitops.environments.difference import settings_of
from policies.catalogue import RULES
from policies.configuration import parse
from tools.generate.configuration import stack_schema


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "policies" / "config").mkdir(parents=True)
    return tmp_path


def new(project: Path, *arguments: str) -> int:
    return main(["new-environment", *arguments, "--project", str(project)])


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--nodes", "4", "--gpus-per-node", "2", "--team", "vision"],
        ["--storage", "cephfs", "--no-install-plugin", "--no-install-volcano"],
        ["--storage", "existing", "--storage-class", "gp3"],
        ["--context", "arn:aws:eks:eu:123:cluster/a b: {x}", "--registry", "r.example.com:5"],
        ["--context", "yes", "--namespace", "no"],
        ["--context", "é \U0001f600"],
    ],
)
def test_new_environment_passes_settings_schema_and_policy_checks(
    flags: list[str], project: Path
) -> None:
    assert new(project, "lab", "--defaults", *flags) == 0
    settings = settings_of(project / "Pulumi.lab.yaml")
    if "--context" in flags:
        assert settings.cluster.context == flags[1]
    assert all(claim.protect for claim in settings.storage.claims.values())
    document = yaml.safe_load((project / "Pulumi.lab.yaml").read_text())
    jsonschema.Draft202012Validator(stack_schema()).validate(document)
    parse((project / "policies" / "config" / "lab.json").read_text(), RULES)


def test_comments_explain_the_sections_of_a_new_environment(project: Path) -> None:
    new(project, "lab", "--defaults")
    lines = (project / "Pulumi.lab.yaml").read_text().splitlines()
    assert sum(line.strip().startswith("#") for line in lines) >= 15
    assert lines[2].startswith("# lab (nodes: 1, GPUs per node: 8). ")


def test_flags_set_quota_queue_and_gpu_budget(project: Path) -> None:
    new(project, "lab", "--defaults", "--nodes", "3", "--gpus-per-node", "4", "--team", "vision")
    settings = settings_of(project / "Pulumi.lab.yaml")
    assert settings.tenancy.quota.gpus == 12
    assert settings.volcano.queues["vision"].capability == {"nvidia.com/gpu": "12"}
    rules = json.loads((project / "policies" / "config" / "lab.json").read_text())
    assert rules["gpu-budget"] == {"maxGpus": 12, "maxGpusPerQueue": {"vision": 12}}


def test_an_existing_environment_is_not_changed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new(project, "lab", "--defaults")
    (project / "Pulumi.lab.yaml").write_text("config: {mine: 1}")
    assert new(project, "lab", "--defaults") == 1
    assert "was not changed" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", _Terminal("\n" * 20))
    assert new(project, "lab") == 1
    assert capsys.readouterr().out == "", "prompted although the environment exists"
    assert (project / "Pulumi.lab.yaml").read_text() == "config: {mine: 1}"


def test_file_that_pulumi_stack_init_wrote_keeps_its_secrets_provider(project: Path) -> None:
    (project / "Pulumi.lab.yaml").write_text("encryptionsalt: v1:abc=\n")
    assert new(project, "lab", "--defaults") == 0
    assert settings_of(project / "Pulumi.lab.yaml").tenancy.namespace == "ml-lab"
    assert yaml.safe_load((project / "Pulumi.lab.yaml").read_text())["encryptionsalt"] == "v1:abc="


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Lab"], "the name 'Lab' is invalid: it must be a DNS label"),
        (["../x"], "must be a DNS label"),
        (["lab", "--nodes", "0"], "--nodes is '0': use a number from 1 to 10000"),
        (["lab", "--nodes", "9" * 5000], "use a number from 1 to 10000"),
        (["lab", "--storage", "floppy"], "use one of nfs, cephfs, existing"),
        (
            ["lab", "--storage", "existing"],
            "--storage-class is missing: set it to the name of the storage class",
        ),
        (["lab", "--nodes", "10001"], "use a number from 1 to 10000"),
        (["lab", "--gpus-per-node", "9" * 11], "use a number from 1 to 10000"),
        (["lab", "--context", "a\nb"], "cluster.context"),
        (["lab", "--context", "a\udcff"], r"--context is 'a\udcff': use valid UTF-8"),
        (["lab", "--namespace", "kube-system"], "tenancy.namespace"),
        (["lab", "--registry", "https://r.example.com"], "images.registry"),
    ],
)
def test_invalid_arguments_leave_no_files(
    arguments: list[str], message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(project, *arguments, "--defaults") == 1
    assert message in capsys.readouterr().err
    assert not list(project.glob("Pulumi.*"))


def test_no_file_remains_if_one_of_the_files_cannot_be_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "policies" / "config").rmdir()
    assert new(project, "lab", "--defaults") == 1
    assert "lab.json" in capsys.readouterr().err
    assert not list(project.glob("Pulumi.*"))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_prompts_for_missing_flags_repeat_until_valid(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    answers = [
        "lab.example.com",
        "",
        "vision",
        "none",
        "2",
        "",
        "nfs",
        "",
        "",
        "no",
        "perhaps",
        "n",
    ]
    monkeypatch.setattr("sys.stdin", _Terminal("\n".join(answers) + "\n"))
    assert new(project, "lab") == 0
    prompts = capsys.readouterr().out
    assert "number of nodes with GPUs [1]: use a number from 1 to 10000" in prompts
    assert "answer yes or no" in prompts
    settings = settings_of(project / "Pulumi.lab.yaml")
    assert settings.cluster.context == "lab.example.com"
    assert settings.tenancy.namespace == "ml-lab"
    assert settings.tenancy.quota.gpus == 16
    assert not settings.volcano.install
    assert settings.gpu.provider == "existing"


def test_storage_class_prompt_repeats_until_answered(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal("\n" * 5 + "existing\n\n\ngp3\n" + "\n" * 5))
    assert new(project, "lab") == 0
    assert capsys.readouterr().out.count("name of the storage class: ") == 3
    claims = settings_of(project / "Pulumi.lab.yaml").storage.claims
    assert {claim.storage_class for claim in claims.values()} == {"gp3"}


def test_an_invalid_name_is_rejected_before_any_prompt(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(""))
    assert new(project, "Lab") == 1
    assert capsys.readouterr().out == ""


def test_end_of_input_leaves_no_files(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal("lab.example.com\n"))
    assert new(project, "lab") == 1
    assert (
        "nothing was written: answer every question, or add --defaults" in capsys.readouterr().err
    )
    assert not list(project.glob("Pulumi.*"))
