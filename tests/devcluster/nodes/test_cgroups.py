"""Control groups, parsed from files of three kinds of hosts and created in a test directory."""

from pathlib import Path

import pytest

from devcluster.nodes import cgroups

HYBRID = """\
12:memory:/user.slice
11:cpuset:/
10:pids:/user.slice/session-1.scope
1:name=systemd:/user.slice
0::/user.slice/session-1.scope
"""
JOINED = "4:net_cls,net_prio:/\n3:cpu,cpuacct:/docker/abc\n2:memory:/docker/a:b\n"
UNIFIED = "0::/user.slice/user-1000.slice\n"


def test_hybrid_host_uses_its_v1_controllers() -> None:
    machine = cgroups.parse_hierarchies(HYBRID)
    assert machine.controllers == ("cpuset", "memory", "name=systemd", "pids")
    assert not machine.unified


def test_controllers_mounted_together_share_a_directory() -> None:
    machine = cgroups.parse_hierarchies(JOINED)
    assert machine.controllers == ("cpu,cpuacct", "memory", "net_cls,net_prio")
    assert machine.directories(Path("/cg"))[0] == Path("/cg/cpu,cpuacct")


def test_named_hierarchy_is_in_the_directory_with_its_name() -> None:
    folders = cgroups.parse_hierarchies(HYBRID).directories(Path("/cg"))
    assert Path("/cg/systemd") in folders


def test_cgroup_v2_host_has_one_directory() -> None:
    machine = cgroups.parse_hierarchies(UNIFIED)
    assert machine.unified
    assert machine.directories(Path("/cg")) == [Path("/cg")]


def test_control_groups_of_this_host_are_parsed() -> None:
    machine = cgroups.hierarchies()
    assert machine.unified or all(machine.controllers)


def test_group_is_created_in_every_hierarchy(tmp_path: Path) -> None:
    machine = cgroups.parse_hierarchies(JOINED)
    folders = cgroups.create("platform/supervisor", machine, tmp_path)
    assert [str(folder.relative_to(tmp_path)) for folder in folders] == [
        "cpu,cpuacct/platform/supervisor",
        "memory/platform/supervisor",
        "net_cls,net_prio/platform/supervisor",
    ]
    assert all(folder.is_dir() for folder in folders)


def test_an_existing_group_is_not_an_error(tmp_path: Path) -> None:
    machine = cgroups.parse_hierarchies(UNIFIED)
    assert cgroups.create("platform", machine, tmp_path) == cgroups.create(
        "platform", machine, tmp_path
    )


@pytest.mark.parametrize("name", ["cpuset.cpus", "cpuset.mems"])
def test_an_empty_cpuset_copies_its_parent(tmp_path: Path, name: str) -> None:
    machine = cgroups.parse_hierarchies("1:cpuset:/\n")
    inner = tmp_path / "cpuset" / "platform" / "node"
    inner.mkdir(parents=True)
    (tmp_path / "cpuset" / name).write_text("0-1\n")
    for folder in (inner, inner.parent):  # The kernel creates these files empty.
        (folder / name).write_text("\n")
    cgroups.create("platform/node", machine, tmp_path)
    assert (inner / name).read_text() == "0-1\n"


def test_existing_cpuset_is_unchanged(tmp_path: Path) -> None:
    machine = cgroups.parse_hierarchies("1:cpuset:/\n")
    group = tmp_path / "cpuset" / "platform"
    group.mkdir(parents=True)
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-7\n")
    (group / "cpuset.cpus").write_text("2\n")
    cgroups.create("platform", machine, tmp_path)
    assert (group / "cpuset.cpus").read_text() == "2\n"


def test_processes_are_found_in_a_group_and_its_children(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "cgroup.procs").write_text("10\n11\n")
    (tmp_path / "node" / "cgroup.procs").write_text("12\n")
    assert cgroups.processes([tmp_path, tmp_path / "absent"]) == {10, 11, 12}


def test_every_controller_is_enabled_for_v2_children(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    cgroups.delegate(tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory"


def test_inner_groups_are_removed_first(tmp_path: Path) -> None:
    machine = cgroups.parse_hierarchies(JOINED)
    cgroups.create("platform/node/kubepods/pod", machine, tmp_path)
    tops = [folder / "platform" for folder in machine.directories(tmp_path)]
    assert cgroups.remove(tops) == []
    assert not any(top.exists() for top in tops)


def test_groups_that_cannot_be_removed_are_returned(tmp_path: Path) -> None:
    group, other = tmp_path / "group", tmp_path / "other"
    group.mkdir()
    other.mkdir()
    (group / "held").touch()  # Like a process in the group, this file makes rmdir fail.
    assert cgroups.remove([group, other], timeout=0.05) == [group]
