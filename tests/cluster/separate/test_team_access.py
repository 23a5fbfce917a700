"""Rights of pipelines and of a team's members and viewers, with a real API server."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from infra.settings.tenancy import TenancySettings
from infra.team_access import team_access
from tests.cluster.platform import Platform
from tools.generate.blocks import DRY_RUNS, PIPELINE_REQUESTS, TEAM_REQUESTS, pipeline_roles
from tools.generate.blocks import NAMESPACE as STACK_NAMESPACE

NAMESPACE = "vision"
DOCS = Path(__file__).parents[3] / "docs"
ROW = re.compile(r"^\| [^|]+ \| `([^`]+)` \| ([a-z ]+) \| ([a-z ]+) \|$", re.MULTILINE)
RUN = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "digits", "namespace": NAMESPACE},
    "spec": {
        "schedulerName": "volcano",
        "queue": "default",
        "minAvailable": 1,
        "tasks": [
            {
                "name": "worker",
                "replicas": 1,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": "registry.example.com/a:1.0"}],
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def team(control_plane: Platform) -> Iterator[Platform]:
    """An API server with the Roles of a team and one Secret."""
    groups = {"members": ["vision"], "viewers": ["guests"]}
    tenancy = TenancySettings.model_validate({"namespace": NAMESPACE, "groups": groups})
    file = control_plane.checkout / "team.yaml"
    file.write_text(yaml.safe_dump_all(team_access(tenancy)))
    control_plane.shell(
        f"kubectl create namespace {NAMESPACE} && kubectl apply -f {file}"
        f" && kubectl create secret generic other --namespace {NAMESPACE} --from-literal=key=value"
    )
    yield control_plane
    control_plane.shell(f"kubectl delete namespace {NAMESPACE} --wait=false")


def as_group(group: str) -> str:
    return f"--namespace {NAMESPACE} --as ann --as-group {group}"


def answers(platform: Platform, requests: Iterable[str], who: str) -> dict[str, str]:
    """Return the API server's answers (`yes` or `no`) to access reviews for a user."""
    requests = list(requests)
    reviewed = "; ".join(
        f"kubectl auth can-i {each} {who} 2>/dev/null || true" for each in requests
    )
    return dict(zip(requests, platform.shell(reviewed).split(), strict=True))


@pytest.mark.parametrize("group", ["vision", "guests", "strangers"])
def test_team_rights_match_the_documented_table(team: Platform, group: str) -> None:
    rows = ROW.findall((DOCS / "teams.md").read_text())
    assert len(rows) == len(TEAM_REQUESTS)
    column = {"vision": 1, "guests": 2}.get(group)
    expected = {row[0]: row[column] if column else "no" for row in rows}
    assert answers(team, expected, as_group(group)) == expected


@pytest.fixture(scope="module")
def pipelines(control_plane: Platform) -> Iterator[Platform]:
    """An API server with the documented rights of pipelines for a stack."""
    file = control_plane.checkout / "pipelines.yaml"
    file.write_text(yaml.safe_dump_all(pipeline_roles()))
    control_plane.shell(f"kubectl create namespace {STACK_NAMESPACE}; kubectl apply -f {file}")
    yield control_plane
    control_plane.shell(
        f"kubectl delete -f {file}; kubectl delete namespace {STACK_NAMESPACE} --timeout=600s"
    )


@pytest.mark.parametrize(("column", "group"), [(1, "previews"), (2, "updates")])
def test_pipeline_rights_match_the_documented_table(
    pipelines: Platform, column: int, group: str
) -> None:
    rows = ROW.findall((DOCS / "pull-requests.md").read_text())
    assert len(rows) == len(PIPELINE_REQUESTS)
    expected = {row[0]: "no" if row[column] == "no" else "yes" for row in rows}
    who = f"--namespace {STACK_NAMESPACE} --as ann --as-group {group}"
    assert answers(pipelines, expected, who) == expected


def test_previews_can_only_write_dry_runs(pipelines: Platform) -> None:
    who = f"--namespace {STACK_NAMESPACE} --as ann --as-group previews"
    create = f"kubectl create deployment digits --image=registry.example.com/a:1.0 {who}"
    assert DRY_RUNS == "dry runs only"
    assert "created (server dry run)" in pipelines.shell(f"{create} --dry-run=server")
    assert "only dry runs are allowed" in pipelines.shell(f"! {create} 2>&1")


def test_a_member_submits_suspends_and_deletes_a_run(team: Platform) -> None:
    member = as_group("vision")
    manifest = shlex.quote(json.dumps(RUN))
    team.shell(f"kubectl create {member} -f - <<< {manifest}")
    owner = {"apiVersion": RUN["apiVersion"], "kind": "Job", "name": "digits", "controller": True}
    uid = team.kubectl("get", "jobs.batch.volcano.sh", "digits", f"--namespace={NAMESPACE}")
    target = owner | {"uid": uid["metadata"]["uid"]}
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": "suspend", "namespace": NAMESPACE, "ownerReferences": [target]},
        "target": target,
        "action": "AbortJob",
    }
    team.shell(f"kubectl create {member} -f - <<< {shlex.quote(json.dumps(command))}")
    team.shell(
        f"kubectl wait jobs.batch.volcano.sh/digits {member}"
        " --for=jsonpath={.status.state.phase}=Aborted --timeout=600s"
    )
    team.shell(f"kubectl delete jobs.batch.volcano.sh digits {member}")


@pytest.mark.parametrize(
    ("group", "command"),
    [
        ("vision", "get secret other"),
        ("vision", "get nodes"),
        ("guests", "delete jobs.batch.volcano.sh digits"),
        ("strangers", "get pods"),
    ],
)
def test_everything_else_is_denied(team: Platform, group: str, command: str) -> None:
    assert "Forbidden" in team.shell(f"! kubectl {command} {as_group(group)} 2>&1")
