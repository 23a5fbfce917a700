"""Control groups, parsed from the files of three kinds of machines and created in a directory."""

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


def test_a_hybrid_machine_has_its_v1_controllers() -> None:
    machine = cgroups.parse_hierarchies(HYBRID)
    assert machine.controllers == ("cpuset", "memory", "name=systemd", "pids")
    assert not machine.unified


def test_controllers_that_are_mounted_together_stay_together() -> None:
    machine = cgroups.parse_hierarchies(JOINED)
    assert machine.controllers == ("cpu,cpuacct", "memory", "net_cls,net_prio")
    assert machine.directories(Path("/cg"))[0] == Path("/cg/cpu,cpuacct")


def test_a_named_hierarchy_is_in_the_directory_of_its_name() -> None:
    folders = cgroups.parse_hierarchies(HYBRID).directories(Path("/cg"))
    assert Path("/cg/systemd") in folders


def test_a_v2_machine_has_one_directory() -> None:
    machine = cgroups.parse_hierarchies(UNIFIED)
    assert machine.unified
    assert machine.directories(Path("/cg")) == [Path("/cg")]


def test_this_machine_can_be_read() -> None:
    machine = cgroups.hierarchies()
    assert machine.unified or all(machine.controllers)


def test_a_group_is_made_in_every_hierarchy(tmp_path: Path) -> None:
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
    for folder in (inner, inner.parent):  # as the kernel makes them
        (folder / name).write_text("\n")
    cgroups.create("platform/node", machine, tmp_path)
    assert (inner / name).read_text() == "0-1\n"


def test_a_set_cpuset_is_unchanged(tmp_path: Path) -> None:
    machine = cgroups.parse_hierarchies("1:cpuset:/\n")
    group = tmp_path / "cpuset" / "platform"
    group.mkdir(parents=True)
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-7\n")
    (group / "cpuset.cpus").write_text("2\n")
    cgroups.create("platform", machine, tmp_path)
    assert (group / "cpuset.cpus").read_text() == "2\n"


def test_processes_are_found_in_groups_and_below(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "cgroup.procs").write_text("10\n11\n")
    (tmp_path / "node" / "cgroup.procs").write_text("12\n")
    assert cgroups.processes([tmp_path, tmp_path / "absent"]) == {10, 11, 12}


def test_v2_children_get_every_controller_of_the_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    cgroups.delegate(tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory"


def test_inner_groups_are_removed_first(tmp_path: Path) -> None:
    machine = cgroups.parse_hierarchies(JOINED)
    cgroups.create("platform/node/kubepods/pod", machine, tmp_path)
    tops = [folder / "platform" for folder in machine.directories(tmp_path)]
    assert cgroups.remove(tops) == []
    assert not any(top.exists() for top in tops)


def test_a_group_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    group, other = tmp_path / "group", tmp_path / "other"
    group.mkdir()
    other.mkdir()
    (group / "held").touch()  # as a process in it would, this keeps rmdir from working
    assert cgroups.remove([group, other], timeout=0.05) == [group]
