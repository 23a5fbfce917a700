"""User documentation: examples are valid, tests run the commands, and links have targets."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from tests.infra.examples import good, problems
from tests.readme import blocks

DOCS = CHECKOUT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
README = CHECKOUT / "README.md"
CHANGELOG = CHECKOUT / "CHANGELOG.md"
PREFIX = "gpu-platform:"
EXAMPLES = (
    "admission.md",
    "clouds.md",
    "model-registry.md",
    "rdma.md",
    "own-training-code.md",
    "training-diffusion.md",
    "upgrading-volcano.md",
)
YAML = re.compile(r"^ *```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)

MESSAGE_SOURCES = ("devcluster", "gitops", "infra")
"""Packages whose messages users see during an update."""

GENERATED = ("configuration.md", "policies.md")

FRAMEWORKS = "tests/engine/processes/test_frameworks.py"
MODELS = "tests/engine/models/test_models.py"
PRODUCTION = "tests/operators/test_11_data_to_production.py"
RUN_BY = {
    "python -m gpu_platform models": MODELS,
    "python -m gpu_platform sweeps": PRODUCTION,
    "pulumi up --stack dev": PRODUCTION,
    "git revert": PRODUCTION,
    "openssl ec": MODELS,
    "MODEL=": MODELS,
    "python -m gitops new-environment lab": "tests/gitops/environments/test_new_command.py",
    "python -m gitops preview": "tests/engine/gitops/test_preview.py",
    "python -m gitops comment": "tests/gitops/test_comment.py",
    "python -m gitops diff": "tests/gitops/environments/test_difference.py",
    "python -m gitops changed": "tests/gitops/test_changed.py",
    "python -m gitops status": "tests/gitops/runs",
    "python -m gitops simulate": "tests/cluster/separate/test_forecast.py",
    "python -m gitops snapshot": "tests/gitops/forecast/test_snapshot.py",
    "pulumi cancel": "tests/cluster/simulated/test_4_gitops.py",
    "pulumi refresh": "tests/cluster/simulated/test_4_gitops.py",
    "PULUMI_K8S_ENABLE_PATCH_FORCE=true pulumi up": "tests/cluster/separate/test_recovery.py",
    "pulumi destroy": "tests/cluster/simulated/test_4_gitops.py",
    "pulumi stack export": "tests/engine/gitops/test_state.py",
    "pulumi stack import": "tests/engine/gitops/test_state.py",
    "pulumi stack change-secrets-provider": "tests/engine/gitops/test_state.py",
    "pulumi config set --secret": "tests/engine/gitops/test_state.py",
    "pulumi stack select": "tests/engine/gitops/test_state.py",
    "pulumi stack output": "tests/cluster/simulated/test_2_readme.py",
    "pip install ./gpu_platform_run": "tests/test_run_wheel.py",
    "export RUN_DIR=/tmp/mine PYTHONPATH=$PWD OMP_NUM_THREADS=1": FRAMEWORKS,
    "python -m training.launch --nproc-per-node=2": FRAMEWORKS,
    "kubectl apply --server-side --dry-run=server": "tests/operators/test_1_definitions.py",
}
"""Prefixes of commands, and the tests that run these commands."""


def settings_examples() -> list[Any]:
    return [
        pytest.param(block, id=f"{page}-{number}")
        for page in EXAMPLES
        for number, block in enumerate(YAML.findall((DOCS / page).read_text()))
    ]


@pytest.mark.parametrize("block", settings_examples())
def test_examples_on_pages_are_valid_settings(block: str) -> None:
    sections = yaml.safe_load(block)
    assert all(key.startswith(PREFIX) for key in sections), sections
    # A cluster with 64 GPUs and no inference services.
    values = good() | {"inference": {}}
    values["volcano"]["queues"]["research"]["capability"] = {"nvidia.com/gpu": 64}
    values["tenancy"]["quota"] = {}
    for key, section in sections.items():
        concern = key.removeprefix(PREFIX)
        values[concern] = values.get(concern, {}) | section
    # The job in the base configuration mounts these claims.
    values["storage"]["claims"] = good()["storage"]["claims"] | values["storage"]["claims"]
    assert problems(values) == []


def test_every_command_is_run_by_a_test_or_states_its_requirements() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.commands, page
            for command in () if block.needs or block.own_cluster else block.commands:
                assert any(command.startswith(known) for known in RUN_BY), (
                    f"{page.name}: {command}: run it in a test and list it here, or begin its "
                    "block with `# needs a real cluster`"
                )


def test_listed_tests_exist() -> None:
    assert [test for test in RUN_BY.values() if not (CHECKOUT / test).exists()] == []


def test_links_have_targets() -> None:
    for page in (*PAGES, README, CHANGELOG):
        for linked, anchor in links(page):
            assert linked.exists(), (page, linked)
            if anchor and linked.suffix == ".md":
                assert anchor in anchors(linked), (page, linked, anchor)


def test_changelog_lists_the_same_one_time_changes_as_the_page_on_upgrades() -> None:
    page = (DOCS / "upgrading.md").read_text()
    section = page.partition("\n## One-time changes\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^- \[(.+?)\]\(docs/upgrading\.md#", CHANGELOG.read_text(), re.MULTILINE)
    assert set(listed) == set(re.findall("^### (.+)$", section, re.MULTILINE))


def test_every_page_is_linked_from_the_readme() -> None:
    visited: set[Path] = set()
    unvisited = {README}
    while unvisited:
        page = unvisited.pop()
        visited.add(page)
        unvisited |= {linked for linked, _ in links(page) if linked.suffix == ".md"} - visited
    assert set(DOCS.glob("*.md")) <= visited


TOKENS = {
    "logs.md": "Deployment/failure-recorder",
    "sweeps.md": "Deployment/sweep-controller",
    "node-health.md": "Deployment/node-health",
}
"""Programs with a token for the API server, by the page that describes them."""


def test_pages_name_the_exemptions_of_programs_with_tokens() -> None:
    rules = json.loads((CHECKOUT / "policies" / "config" / "prod.json").read_text())
    for rule in ("no-hidden-token", "no-service-account-token"):
        exempt = rules[rule]["systemWorkloads"]
        assert {each.partition("/")[2] for each in exempt} == set(TOKENS.values())
        for page, workload in TOKENS.items():
            text = (DOCS / page).read_text()
            assert f"`{rule}`" in text
            assert f"/{workload}`" in text


THIRD_PARTY_MESSAGES = {
    "invalid peer certificate": "uv",
    "cannot re-use a name that is still in use": "Helm",
    "another operation (install/upgrade/rollback) is in progress": "Helm",
    "the stack is currently locked": "Pulumi",
    "failed to load checkpoint: EOF": "Pulumi",
    "spec is immutable after creation": "Kubernetes",
    "Forbidden: may not be changed in an update": "Kubernetes",
    "field is immutable": "Kubernetes",
    "updates to … are forbidden": "Kubernetes",
    "spec.template: … field is immutable": "Kubernetes",
    "Apply failed with 1 conflict": "Kubernetes",
    "job updates may not change fields other than": "Volcano",
    "timed out waiting for the condition": "Pulumi",
    "'QUEUE' timed out waiting to be Ready": "Pulumi",
    "❌": "Pulumi",
    "Pending": "Kubernetes",
    "Failed": "Kubernetes",
    "make up": "a command",
    "only dynamically provisioned pvc can be resized": "Kubernetes",
    'no matches for kind "…"': "Kubernetes",
    'namespaces "…" not found': "Kubernetes",
    'volume "…" already bound to a different claim': "Kubernetes",
    'storageclass.storage.k8s.io "…" not found': "Kubernetes",
    "Timeout occurred polling for '…'": "Pulumi",
    "unable to get cluster state": "Pulumi",
    "ResourceRegistrationFailed": "Pulumi",
    "--continue-on-error": "an option of Pulumi",
}
"""Prefixes of messages in Troubleshooting that third-party programs print."""


def messages() -> list[str]:
    """Return the messages quoted in the first column of the Troubleshooting table."""
    rows = re.findall(r"^\| (.+?) \| ", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    # A quotation that contains backticks is enclosed in double backticks.
    return [a.strip() or b for row in rows for a, b in re.findall(r"``(.+?)``|`([^`]+)`", row)]


def test_troubleshooting_quotes_only_messages_that_exist() -> None:
    strings = source_strings()
    for message in messages():
        if message.startswith((*THIRD_PARTY_MESSAGES,)):
            continue
        parts = [part.strip() for part in re.split(r"…|\b\d\S*", message) if len(part.strip()) > 3]
        assert parts, message
        assert any(all(part in text for part in parts) for text in strings), message


def source_strings() -> list[str]:
    """Return the string literals in the sources, without interpolated values."""
    files = (file for top in MESSAGE_SOURCES for file in (CHECKOUT / top).rglob("*.py"))
    return [
        "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if (parts := node.values if isinstance(node, ast.JoinedStr) else [node])
    ]


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the files that a page links to, with the anchor in each."""
    found = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text())
    return [((page.parent / file).resolve() if file else page, anchor) for file, anchor in found]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages_about_gpus() -> list[Path]:
    names = re.compile(r"NCCL|CUDA|\bbf16\b|on a GPU\b")
    required = {DOCS / "jobs.md", DOCS / "models.md", DOCS / "inference.md", README}
    # These pages mention GPUs but do not describe computations on them.
    exempt = {DOCS / name for name in (*GENERATED, "runbooks.md", "inference-rollout.md")}
    found = {page for page in DOCS.glob("*.md") if names.search(page.read_text())}
    return sorted((found | required) - exempt)


@pytest.mark.parametrize("page", pages_about_gpus(), ids=lambda page: page.name)
def test_every_page_about_gpus_links_to_the_gpu_measurements(page: Path) -> None:
    assert DOCS / "gpu.md" in {page, *(file for file, _ in links(page))}
