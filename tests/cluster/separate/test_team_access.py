"""What members and viewers of a team may do in a real API server."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra.settings.tenancy import TenancySettings
from infra.team_access import team_access
from tests.cluster.platform import Platform

NAMESPACE = "vision"
PAGE = (Path(__file__).parents[3] / "docs/teams.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| `(\w+) ([^`]+)` \| (yes|no) \| (yes|no) \|$", PAGE, re.MULTILINE)
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
    """An API server with the Roles of a team, in which one Secret exists."""
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


@pytest.mark.parametrize("group", ["vision", "guests", "strangers"])
def test_rights_are_those_of_the_table(team: Platform, group: str) -> None:
    assert len(ROWS) > 20
    column = {"vision": 2, "guests": 3}.get(group)
    expected = {tuple(row[:2]): row[column] if column else "no" for row in ROWS}
    asked = "; ".join(
        f"kubectl auth can-i {verb} {resource} {as_group(group)} 2>/dev/null || true"
        for verb, resource in expected
    )
    assert dict(zip(expected, team.shell(asked).split(), strict=True)) == expected


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
        " --for=jsonpath={.status.state.phase}=Aborted --timeout=60s"
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
def test_everything_else_is_refused(team: Platform, group: str, command: str) -> None:
    assert "Forbidden" in team.shell(f"! kubectl {command} {as_group(group)} 2>&1")
