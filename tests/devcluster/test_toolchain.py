"""The whole toolchain, with a fake `go` that writes scripts instead of programs."""

import hashlib
import json
import re
import stat
import tarfile
import threading
import time
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from devcluster import DevclusterError
from devcluster.toolchain import __main__ as command
from devcluster.toolchain import ensure, go, missing, pins
from devcluster.toolchain.manifests import write_repository
from tests.devcluster.conftest import FILES, Machine, script

BROKEN = """{"ImportPath":"fine.example/a","Action":"build-output","Output":"fine.example/a\\n"}
{"ImportPath":"bad.example/b","Action":"build-output","Output":"bad.example/b\\n"}
{"ImportPath":"bad.example/b","Action":"build-output","Output":"# bad.example/b\\n"}
{"ImportPath":"bad.example/b","Action":"build-output","Output":"server.go:3: no such thing\\n"}
{"ImportPath":"bad.example/b","Action":"build-fail"}
"""


def test_an_empty_cache_is_filled_with_the_whole_group(machine: Machine) -> None:
    toolchain = ensure("real", machine.cache, machine.reported.append)
    for _, program in pins.load().group("real"):
        place = toolchain.bin / program.name
        if program.plugin:
            place = toolchain.pulumi_home / "plugins" / program.plugin / program.name
        assert place.stat().st_mode & stat.S_IXUSR, program.name
    assert missing("real", machine.cache) == []
    assert toolchain.installed == ()


def test_programs_built_from_one_package_share_one_file(machine: Machine) -> None:
    toolchain = ensure("simulated", machine.cache, machine.reported.append)
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    assert len({(toolchain.bin / name).stat().st_ino for name in programs}) == 1
    assert sum("control-plane" in call for call in machine.calls("build")) == 1


def test_module_archives_are_deleted_before_the_build(machine: Machine) -> None:
    downloads = machine.cache / "go" / "mod" / "cache" / "download" / "x.example" / "@v"
    downloads.mkdir(parents=True)
    for suffix in ("zip", "ziphash"):
        (downloads / f"v1.0.0.{suffix}").touch()
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError):
        ensure("engine", machine.cache, machine.reported.append)
    assert [file.suffix for file in downloads.iterdir()] == [".ziphash"]


def test_our_files_replace_those_of_the_module(machine: Machine) -> None:
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError):
        ensure("engine", machine.cache, machine.reported.append)
    sdk = machine.cache / "tools" / ".work" / "provider" / "sdk" / "go" / "kubernetes"
    ours = pins.load().module("provider").directory / "sdk" / "go" / "kubernetes"
    assert (sdk / "provider.go").read_text() == FILES["go/kubernetes/provider.go"]
    assert (sdk / "yaml/v2/kinds.go").read_text() == (ours / "yaml/v2/kinds.go").read_text()
    edits = [call for call in machine.calls("mod") if call.startswith("mod edit")]
    assert "-replace=github.com/pulumi/pulumi-kubernetes/sdk/v4=./sdk" in edits[0]


def test_engine_group_contains_no_cluster_tools(machine: Machine) -> None:
    toolchain = ensure("engine", machine.cache, machine.reported.append)
    assert (toolchain.bin / "pulumi").exists()
    assert not (toolchain.bin / "etcd").exists()
    assert "etcd" in missing("simulated", machine.cache)


def test_a_second_call_does_not_start_go(machine: Machine) -> None:
    ensure("real", machine.cache, machine.reported.append)
    (machine.fake / "calls").unlink()
    machine.reported.clear()
    ensure("real", machine.cache, machine.reported.append)
    assert machine.calls("build") == machine.calls("mod") == machine.calls("env") == []
    assert machine.reported == []


def test_builds_do_not_depend_on_the_users_go_settings(machine: Machine) -> None:
    ensure("engine", machine.cache, machine.reported.append)
    assert machine.calls("build")
    for call in machine.calls("build"):
        caches = f"{machine.cache}/go/mod {machine.cache}/go/build"
        assert f"[-mod=readonly -modcacherw -trimpath -buildvcs=false cgo=0 {caches}]" in call


def test_an_interrupted_build_keeps_finished_programs(machine: Machine) -> None:
    ensure("engine", machine.cache, machine.reported.append)
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError):
        ensure("simulated", machine.cache, machine.reported.append)
    assert missing("engine", machine.cache) == []
    assert "etcd" in missing("simulated", machine.cache)
    (machine.fake / "broken").unlink()
    (machine.fake / "calls").unlink()
    ensure("simulated", machine.cache, machine.reported.append)
    built = {re.search(r"/(\w+)\.out/", call)[1] for call in machine.calls("build")}
    assert built == {"tools", "kwok"}


def test_files_of_a_killed_build_are_removed(machine: Machine) -> None:
    left = machine.cache / "tools" / ".work" / "tools.out" / "pulumi"
    left.parent.mkdir(parents=True)
    left.write_text("half a program")
    toolchain = ensure("engine", machine.cache, machine.reported.append)
    assert "built" in (toolchain.bin / "pulumi").read_text()
    assert not left.exists()


def test_failed_build_removes_gos_temporary_directory(machine: Machine) -> None:
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError):
        ensure("engine", machine.cache, machine.reported.append)
    assert list(machine.fake.parent.rglob("go-build*")) == []


def test_the_temporary_directory_of_a_killed_build_is_removed(machine: Machine) -> None:
    left = machine.cache / "go" / "tmp" / "go-build7"
    left.mkdir(parents=True)
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError):
        ensure("engine", machine.cache, machine.reported.append)
    assert not left.exists()


def test_error_of_a_failed_build_contains_the_compiler_message(machine: Machine) -> None:
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError) as caught:
        ensure("engine", machine.cache, machine.reported.append)
    message, _, where = str(caught.value).rpartition("\n")
    assert message == "# bad.example/b\nserver.go:3: no such thing"
    assert str(machine.cache / "logs" / "provider.log") in where


def test_error_for_a_damaged_module_cache_suggests_a_fix(machine: Machine) -> None:
    (machine.fake / "broken").write_text(BROKEN)
    (machine.fake / "damage").write_text("bad.example v1.0.0: dir has been modified")
    with pytest.raises(DevclusterError) as caught:
        ensure("engine", machine.cache, machine.reported.append)
    assert f"`rm -rf {machine.cache}/go/mod`" in str(caught.value)
    assert "bad.example v1.0.0: dir has been modified" in str(caught.value)


def outages(machine: Machine, monkeypatch: pytest.MonkeyPatch, *, count: int) -> None:
    """Let the next downloads of a module fail."""
    monkeypatch.setattr(go, "RETRY_SECONDS", 0.0)
    (machine.fake / "outages").write_text(" ".join(["down"] * count) + "\n")


def test_failed_download_is_retried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    outages(machine, monkeypatch, count=2)
    ensure("engine", machine.cache, machine.reported.append)
    assert (machine.fake / "outages").read_text() == "\n"


def test_error_of_a_failed_download_contains_the_proxy_message(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages(machine, monkeypatch, count=99)
    with pytest.raises(DevclusterError, match=r"^proxy: 502 Bad Gateway\n`go mod download "):
        ensure("engine", machine.cache, machine.reported.append)


def test_go_caches_are_kept_after_a_failure_and_deleted_after_a_build(machine: Machine) -> None:
    caches = machine.cache / "go"
    (machine.fake / "broken").write_text(BROKEN)
    with pytest.raises(DevclusterError):
        ensure("engine", machine.cache, machine.reported.append)
    assert (caches / "build").is_dir()
    (machine.fake / "broken").unlink()
    ensure("engine", machine.cache, machine.reported.append)
    assert not caches.exists()


def test_interrupted_removal_of_the_go_caches_is_resumed(machine: Machine) -> None:
    ensure("engine", machine.cache, machine.reported.append)
    left = machine.cache / "go.removed" / "a" / "mod" / "file"
    left.parent.mkdir(parents=True)
    left.touch()
    ensure("engine", machine.cache, machine.reported.append)
    deadline = time.monotonic() + 300
    while (machine.cache / "go.removed").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_go_caches_are_kept_on_request(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEP_GO_CACHE", "1")
    ensure("engine", machine.cache, machine.reported.append)
    assert (machine.cache / "go" / "build").is_dir()


def test_announcement_lists_tools_to_build_installed_tools_and_time(machine: Machine) -> None:
    machine.tool("etcd", "etcd Version: 3.6.5")
    lines: list[str] = []
    ensure("simulated", machine.cache, machine.reported.append, announce=lines.append)
    (line,) = lines
    assert line.startswith("building pulumi-resource-kubernetes, kube-apiserver, ")
    assert re.search(r"from Go modules, about \d+ min; already installed: etcd$", line)


def test_an_old_go_is_rejected(machine: Machine) -> None:
    (machine.fake / "version").write_text("go1.19.8")
    with pytest.raises(
        DevclusterError,
        match=r"Go 1\.26 or newer, .* go1\.19 is on the PATH: install a newer version",
    ):
        ensure("engine", machine.cache, machine.reported.append)


def test_a_missing_go_is_rejected(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DevclusterError, match="`go` is not on the PATH: install it"):
        ensure("engine", machine.cache, machine.reported.append)


def test_installed_tool_with_the_pinned_version_is_used(machine: Machine) -> None:
    etcd = machine.tool("etcd", "etcd Version: 3.6.5")
    toolchain = ensure("simulated", machine.cache, machine.reported.append)
    assert (toolchain.bin / "etcd").resolve() == etcd
    assert toolchain.installed == ("etcd",)
    assert not list((machine.cache / "tools").glob("etcd-*"))


@pytest.mark.parametrize("version", ["3.6.4", "3.6.50", "13.6.5", "3.6.5-rc.1", ""])
def test_installed_tool_with_another_version_is_not_used(machine: Machine, version: str) -> None:
    machine.tool("etcd", f"etcd Version: {version}")
    toolchain = ensure("simulated", machine.cache, machine.reported.append)
    assert "built" in (toolchain.bin / "etcd").read_text()


def test_version_of_an_installed_tool_is_queried_only_once(machine: Machine) -> None:
    machine.tool("etcd", "etcd Version: 3.6.5")
    for _ in range(3):
        ensure("simulated", machine.cache, machine.reported.append)
    assert (machine.fake / "queries").read_text().count("queried") == 1


def test_version_of_a_tool_that_did_not_answer_in_time_is_queried_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd = machine.tool("etcd", "etcd Version: 3.6.5")
    text = etcd.read_text()
    etcd.write_text(
        text.replace("echo queried", f"[ -e {machine.fake}/fast ] || exec sleep 60; echo")
    )
    monkeypatch.setattr("devcluster.toolchain.TIMEOUT_SECONDS", 0.2)
    assert ensure("simulated", machine.cache, machine.reported.append).installed == ()
    (machine.fake / "fast").touch()
    monkeypatch.setattr("devcluster.toolchain.TIMEOUT_SECONDS", 20)
    toolchain = ensure("simulated", machine.cache, machine.reported.append)
    assert (toolchain.bin / "etcd").resolve() == etcd


def test_version_of_an_upgraded_tool_is_queried_again_and_the_tool_replaced(
    machine: Machine,
) -> None:
    machine.tool("etcd", "etcd Version: 3.6.5")
    ensure("simulated", machine.cache, machine.reported.append)
    machine.tool("etcd", "etcd Version: 3.7.0 of another size")
    toolchain = ensure("simulated", machine.cache, machine.reported.append)
    assert "built" in (toolchain.bin / "etcd").read_text()


def test_our_tools_on_path_do_not_count_as_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = ensure("engine", machine.cache, machine.reported.append)
    monkeypatch.setenv("PATH", str(toolchain.bin), prepend=":")
    assert ensure("engine", machine.cache, machine.reported.append).installed == ()


def test_installed_pulumi_is_used_only_with_its_language_host(machine: Machine) -> None:
    machine.tool("pulumi", "v3.259.0")
    machine.tool("pulumi-language-python", "")
    assert ensure("engine", machine.cache, machine.reported.append).installed == ("pulumi",)
    machine.tool("pulumi-language-python-exec", "")
    machine.tool("pulumi-resource-pulumi-python", "")
    assert set(ensure("engine", machine.cache, machine.reported.append).installed) == {
        "pulumi",
        "pulumi-language-python",
        "pulumi-language-python-exec",
        "pulumi-resource-pulumi-python",
    }


def test_programs_built_together_are_in_one_real_directory(machine: Machine) -> None:
    toolchain = ensure("engine", machine.cache, machine.reported.append)
    for name in ("pulumi", "pulumi-language-python", "pulumi-language-python-exec"):
        assert (toolchain.bin / name).resolve().parent == toolchain.bin.resolve()


def test_users_provider_plugin_is_used(machine: Machine, tmp_path: Path) -> None:
    plugin = "plugins/resource-kubernetes-v4.25.0/pulumi-resource-kubernetes"
    own = script(tmp_path / "users-pulumi" / plugin, "#!/bin/sh\n")
    toolchain = ensure("engine", machine.cache, machine.reported.append)
    assert (toolchain.pulumi_home / plugin).resolve() == own


def test_logs_of_pulumi_are_deleted_and_disabled(machine: Machine) -> None:
    log = machine.cache / "pulumi-home" / "logs" / "pulumi-20261130T100000.log"
    log.parent.mkdir(parents=True)
    log.touch()
    toolchain = ensure("engine", machine.cache, machine.reported.append)
    assert (toolchain.pulumi_home / "logs").is_file()


def test_second_process_waits_for_the_build_and_reports_that(machine: Machine) -> None:
    (machine.cache / "tools").mkdir(parents=True)
    lock = FileLock(machine.cache / "tools" / ".lock")
    lock.acquire()
    waiting = threading.Event()

    def report(line: str) -> None:
        machine.reported.append(line)
        waiting.set()

    second = threading.Thread(target=ensure, args=("engine", machine.cache, report))
    second.start()
    assert waiting.wait(500)
    assert machine.reported == ["another process is building the tools: waiting for it"]
    assert machine.calls("build") == []
    lock.release()
    second.join(120)
    assert missing("engine", machine.cache) == []


def test_volcano_is_built_with_its_chart_definitions_and_webhooks(machine: Machine) -> None:
    toolchain = ensure("simulated", machine.cache, machine.reported.append)
    assert sorted(f.name for f in toolchain.charts.iterdir()) == [
        "index.yaml",
        "volcano-1.14.0.tgz",
    ]
    assert [f.name for f in sorted(toolchain.volcano.definitions.iterdir())] == [
        "batch.volcano.sh_jobs.yaml",
        "flow.volcano.sh_jobflows.yaml",
    ]
    webhooks = json.loads(toolchain.volcano.webhooks.read_text())
    assert webhooks == [{"kind": "ValidatingWebhookConfiguration"}]


def test_operators_are_built_only_on_request(machine: Machine) -> None:
    assert ensure("real", machine.cache, machine.reported.append).manifests == {}
    assert not any("operator" in line for line in machine.reported)
    toolchain = ensure("real", machine.cache, machine.reported.append, ("training-operator",))
    assert (toolchain.bin / "training-operator.v1").exists()
    assert not (toolchain.bin / "jobset").exists()


def test_operator_is_built_with_its_manifests_and_our_patches(machine: Machine) -> None:
    toolchain = ensure("real", machine.cache, machine.reported.append, ("trainer",))
    jobset, trainer = toolchain.manifests["trainer"]
    assert (jobset / "module" / "crd" / "volcano").exists()
    own = trainer / "module" / "base" / "deployment.yaml"
    own.write_text("files copied from the module cache are not writable")
    written = pins.load().module("trainer").directory / "trainer.yaml"
    assert (trainer / "kustomization.yaml").read_bytes() == written.read_bytes()


def test_an_existing_operator_is_not_built_again(machine: Machine) -> None:
    for _ in range(2):
        ensure("real", machine.cache, machine.reported.append, ("trainer",))
    machine.reported.clear()
    ensure("real", machine.cache, machine.reported.append, ("trainer",))
    assert machine.reported == []


def test_prometheus_is_built_with_only_kubernetes_service_discovery(machine: Machine) -> None:
    toolchain = ensure("engine", machine.cache, machine.reported.append, ["prometheus"])
    assert {"prometheus", "kube-state-metrics"} <= {file.name for file in toolchain.bin.iterdir()}
    (found,) = [line for line in machine.calls("list") if "-tags=" in line]
    assert found.startswith("list -tags=remove_all_sd,enable_kubernetes_sd ")


def test_only_programs_that_call_c_are_built_with_cgo(machine: Machine) -> None:
    ensure("real", machine.cache, machine.reported.append, ["nvidia", "languages"])
    built = {("nvidia" in call, "cgo=1" in call) for call in machine.calls("build")}
    assert built == {(True, True), (False, False)}


def test_languages_are_built_only_on_request(machine: Machine) -> None:
    toolchain = ensure("real", machine.cache, machine.reported.append)
    assert not (toolchain.bin / "pulumi-language-yaml").exists()
    toolchain = ensure("engine", machine.cache, machine.reported.append, ["languages"])
    assert (toolchain.bin / "pulumi-language-yaml").exists()


def test_an_interrupted_command_states_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "ensure", interrupt)
    monkeypatch.setattr("sys.argv", ["toolchain", "engine"])
    assert command.main() == 130
    assert capsys.readouterr().err == "interrupted: run the command again to resume the build\n"


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text('name: volcano\nversion: "1.14.0"\nappVersion: "0.1"\n')
    (folder / "templates" / "scheduler.yaml").write_text("kind: Deployment\n")
    return folder


def repository(chart: Path, to: Path) -> Path:
    to.mkdir()
    write_repository(chart, to)
    return to


def test_chart_package_contains_the_chart_in_a_directory_with_its_name(
    chart: Path, tmp_path: Path
) -> None:
    made = repository(chart, tmp_path / "made")
    with tarfile.open(made / "volcano-1.14.0.tgz") as package:
        assert package.getnames() == ["volcano/Chart.yaml", "volcano/templates/scheduler.yaml"]


def test_chart_index_contains_version_file_and_digest(chart: Path, tmp_path: Path) -> None:
    made = repository(chart, tmp_path / "made")
    (entry,) = yaml.safe_load((made / "index.yaml").read_text())["entries"]["volcano"]
    package = made / entry["urls"][0]
    assert entry["version"] == "1.14.0"
    assert entry["digest"] == hashlib.sha256(package.read_bytes()).hexdigest()


def test_packing_a_chart_is_reproducible(chart: Path, tmp_path: Path) -> None:
    first, second = repository(chart, tmp_path / "a"), repository(chart, tmp_path / "b")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
