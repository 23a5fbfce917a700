import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from devcluster.toolchain import align, go, pins
from devcluster.toolchain.pins import GROUPS, OPERATORS

PINS = pins.load()
MODULES = [pytest.param(module, id=module.name) for module in PINS.modules]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_go_mod_and_go_sum(module: pins.Module) -> None:
    assert (
        (module.directory / "go.mod").read_text().startswith("module gpu-platform.dev/toolchain/")
    )
    assert (module.directory / "go.sum").exists()


@pytest.mark.parametrize("module", MODULES)
def test_go_sum_has_a_hash_for_every_module_in_go_mod(module: pins.Module) -> None:
    go_mod = (module.directory / "go.mod").read_text()
    required = re.findall(r"^\s*(?:require )?(\S+\.\S+) (v\S+)", go_mod, re.MULTILINE)
    found = re.findall(r"^\s*(?:replace )?(\S+) => (\S+) (v\S+)", go_mod, re.MULTILINE)
    replaced = {path: (other, version) for path, other, version in found}
    verified = (module.directory / "go.sum").read_text()
    wanted = {" ".join(replaced.get(path, (path, version))) for path, version in required}
    assert {line for line in wanted if line not in verified} == set()


@pytest.mark.parametrize("module", MODULES)
def test_packages_are_tools_in_go_mod_or_our_main_packages(module: pins.Module) -> None:
    go_mod = (module.directory / "go.mod").read_text()
    for program in module.programs:
        if program.package and program.package.startswith("."):
            assert (module.directory / program.package / "main.go").exists()
        elif program.package:
            assert re.search(rf"^\s*(tool )?{re.escape(program.package)}$", go_mod, re.MULTILINE)
        else:
            assert program.module
            assert program.file
            assert program.module in go_mod


def test_each_tool_group_contains_the_previous_one() -> None:
    names = [{p.name for _, p in PINS.group(group)} for group in GROUPS]
    assert names[0] < names[1] < names[2]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_built_only_with_their_extra_group(operator: pins.Operator) -> None:
    own = {program.name for program in PINS.module(operator).programs}
    assert own.isdisjoint(program.name for _, program in PINS.group("real"))
    assert own <= {program.name for _, program in PINS.group("real", [operator])}


@pytest.mark.parametrize(
    ("extra", "program"),
    [
        ("traefik", "traefik"),
        ("prometheus", "prometheus"),
        ("nvidia", "nvidia-device-plugin"),
        ("languages", "pulumi-language-yaml"),
        ("containerd", "containerd-2"),
        ("keda", "keda-adapter"),
        ("kube-router", "kube-router"),
        ("volcano-1.10", "vc-scheduler-1.10"),
    ],
)
def test_extras_are_not_part_of_the_default_groups(extra: pins.Extra, program: str) -> None:
    assert program not in {found.name for _, found in PINS.group("real")}
    assert program in {found.name for _, found in PINS.group("real", [extra])}


def test_modules_built_together_agree_on_dependency_versions() -> None:
    """`python -m devcluster.toolchain.align` fixes a disagreement."""
    assert align.disagreements() == {}


@pytest.mark.parametrize("module", MODULES)
def test_manifests_are_copied_from_required_modules_with_a_kustomization(
    module: pins.Module,
) -> None:
    for manifests in module.manifests:
        assert f"{manifests.module} v" in (module.directory / "go.mod").read_text()
        assert (module.directory / f"{manifests.name}.yaml").exists()


def test_simulated_cluster_requires_no_kubelet() -> None:
    names = {p.name for _, p in PINS.group("simulated")}
    assert {"pulumi", "etcd", "kube-apiserver", "kwok", "vc-scheduler"} <= names
    assert names.isdisjoint({"kubelet", "kube-proxy", "coredns"})


def test_expected_version_outputs_match_go_mod() -> None:
    for module, program in PINS.group("real"):
        if program.ask:
            assert program.answer
            assert re.search(
                rf"^\s\S+ v{re.escape(program.answer.removeprefix('v'))}( |$)",
                (module.directory / "go.mod").read_text(),
                re.MULTILINE,
            )


def test_the_digest_changes_with_any_pinned_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = PINS.module("kwok")
    before = module.digest()
    changed = tmp_path / "modules" / "kwok"
    changed.mkdir(parents=True)
    for file in module.directory.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(pins, "HERE", tmp_path)
    assert module.digest() == before
    with (changed / "go.sum").open("a") as sums:
        sums.write("example.com/extra v1.0.0 h1:x=\n")
    assert module.digest() != before


def test_the_digest_changes_with_the_pins_themselves() -> None:
    module = PINS.module("kwok")
    assert module.model_copy(update={"version": "9.9.9"}).digest() != module.digest()


def test_misspelled_key_is_rejected(tmp_path: Path) -> None:
    table = tmp_path / "pins.toml"
    table.write_text(
        '[[module]]\nname="a"\nversion="1"\ngroup="engine"\n[[module.program]]\nnam="a"'
    )
    with pytest.raises(ValidationError, match="nam"):
        pins.load(table)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        (".", "ours"),
        ("go.etcd.io/etcd/server/v3", "server"),
        ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
    ],
)
def test_executables_have_the_name_that_go_derives_from_the_package(
    package: str, name: str
) -> None:
    assert go.executable_name(package, "ours") == name
