import os
import signal
import subprocess
import time
from pathlib import Path

from tests.soak.memory import Sampler, anonymous_mib, cluster_processes, memory_by_role, role

UID = "0b0b7a1e-1111-2222-3333-444455556666"
PODS = {UID: "server"}


def test_processes_of_pods_are_recognized_by_cgroup() -> None:
    for name in (f"pod{UID}", f"pod{UID.replace('-', '_')}.slice"):
        assert role("python3 -m inference", f"5:memory:/kubepods/{name}/abc", PODS) == "server"


def test_other_pods_are_ignored() -> None:
    other = UID.replace("0b", "0c")
    assert role("python3 -m training", f"5:memory:/kubepods/pod{other}/abc", PODS) is None


def test_cluster_processes_are_named_after_their_program() -> None:
    assert role("/opt/bin/kubelet --config=a", "5:memory:/node", PODS) == "kubelet"
    assert role("python3 -m devcluster.nodes.init x", "/", PODS) == "devcluster.nodes.init"


def test_short_lived_programs_are_ignored() -> None:
    assert role("/usr/bin/containerd-shim-runc-v2 -id 1", "/", PODS) is None
    assert role("", "/", PODS) is None


def test_mapped_files_are_not_counted() -> None:
    rollup = "Pss:   9000 kB\nPss_Anon:   2048 kB\nPss_File:  5000 kB\nPss_Shmem:  1024 kB\n"
    assert anonymous_mib(rollup) == 3.0


def test_exited_processes_are_ignored() -> None:
    assert memory_by_role([2**22 + 1], PODS) == {}


def test_memory_of_a_process_is_sampled() -> None:
    [(name, mib)] = memory_by_role([os.getpid()], {}).items()
    assert "py" in name
    assert mib > 1


def test_cluster_processes_are_descendants_of_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "cluster.json").write_text(f'{{"pid": {os.getpid()}}}')
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as child:
        while len(found := cluster_processes(tmp_path)) < 2:
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
    assert child.pid in found
    assert os.getpid() not in found


def test_the_sampler_runs_until_it_is_closed() -> None:
    sampler = Sampler(lambda: [os.getpid()], dict, 0.01)
    with sampler:
        while len(sampler.samples) < 3:
            time.sleep(0.01)
    minutes = [sample["minute"] for sample in sampler.samples]
    assert minutes == sorted(minutes)
