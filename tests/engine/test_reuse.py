"""The components in other programs: a Python package, and a plugin for YAML and TypeScript."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import Toolchain
from gpu_platform.plugin.host import VERSION, Provider
from tests import packaged
from tests.engine.programs import Program, language_hosts, node_modules

DATA = Path(__file__).parent / "data"
PAGE = (CHECKOUT / "docs" / "reuse.md").read_text()
EXAMPLES = sorted(
    project.with_name("__main__.py") for project in (CHECKOUT / "examples").glob("*/Pulumi.yaml")
)
JOB = "kubernetes:batch.volcano.sh/v1alpha1:Job"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel. Its sources are in the directory `source` next to it."""
    environment = packaged.environment(tmp_path_factory.mktemp("installed"))
    # PulumiPlugin.yaml expects the environment at this path.
    (environment.parent / "source" / ".venv").symlink_to(environment)
    return environment


def project(
    installed: Path, tools: Toolchain, name: str, path_directories: tuple[Path, ...] = ()
) -> Program:
    folder = installed.parent / name
    shutil.copytree(DATA / name.partition("-")[0], folder)
    return Program(folder, tools, installed.parent / f"backend-{name}", path_directories)


def python(installed: Path, code: str, folder: Path) -> str:
    done = subprocess.run(
        [str(installed / "bin" / "python"), "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EVERY_MODULE = """
import importlib, pkgutil, sys, gpu_platform
for module in pkgutil.walk_packages(gpu_platform.__path__, "gpu_platform."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
names = {name.partition(".")[0] for name in sys.modules}
print(sorted({"infra", "policies", "training", "inference", "torch"} & names))
"""


def test_package_has_one_top_level_name_and_does_not_import_torch(
    installed: Path, tmp_path: Path
) -> None:
    assert python(installed, EVERY_MODULE, tmp_path) == "[]\n"
    packages = installed / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (metadata,) = packages.glob("gpu_platform-*.dist-info")
    files = [line.split(",")[0] for line in (metadata / "RECORD").read_text().splitlines()]
    assert {Path(file).parts[0] for file in files} == {"gpu_platform", metadata.name, ".."}
    assert (packages / "gpu_platform" / "py.typed").exists()
    assert not list(packages.glob("torch*"))


def test_installed_check_requires_no_pulumi_and_accepts_team_rules(installed: Path) -> None:
    example = CHECKOUT / "examples" / "policy-rules"
    checked = f"""
import sys
from gpu_platform.policies.test import main
arguments = [{str(example / "cases")!r}, "--rules", {str(example / "team_rules.py")!r}]
assert main([*arguments, "--no-stack-rules"]) == 0
print("pulumi" in sys.modules)
"""
    assert python(installed, checked, example).splitlines()[-1] == "False"


def test_package_includes_the_types_of_the_components(installed: Path, tmp_path: Path) -> None:
    """Mypy accepts the examples and the program below, and reports an invalid argument."""
    program = (DATA / "python" / "__main__.py").read_text()
    (tmp_path / "right.py").write_text(program)
    (tmp_path / "wrong.py").write_text(program.replace("nodes=2", "nodes='two'"))
    for example in EXAMPLES:
        copy = tmp_path / f"{example.parent.name.replace('-', '_')}.py"
        copy.write_text(example.read_text())
    mypy = ["-m", "mypy", "--strict", "--python-executable", str(installed / "bin" / "python")]
    done = subprocess.run(
        [sys.executable, *mypy, *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (error, _) = done.stdout.splitlines()
    assert error.startswith("wrong.py:")
    assert '"nodes"' in error


def test_python_program_with_the_package_creates_a_run(installed: Path, tools: Toolchain) -> None:
    program = project(installed, tools, "python")
    (program.folder / ".venv").symlink_to(installed)
    program.create()
    outcome = program.up()
    assert outcome.status == 0, outcome.text
    run = program.outputs()["run"]
    job = program.manifests()["Job", run["name"]]
    assert job["spec"]["queue"] == "vision"
    assert run["gpusPerNode"] == 4


def installed_pack(installed: Path) -> str:
    command = [installed / "bin" / "gpu-policies", "--pack"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_installed_pack_checks_a_program(installed: Path, tools: Toolchain) -> None:
    program = project(installed, tools, "python-checked")
    (program.folder / ".venv").symlink_to(installed)
    program.create()
    config = program.folder / "policies.json"
    config.write_text('{"image-registry-allowed": {"allowedRegistries": ["registry.invalid"]}}')
    pack = ("--policy-pack", installed_pack(installed), "--policy-pack-config", str(config))
    outcome = program.preview(*pack)
    assert outcome.status != 0, outcome.text
    assert "image-registry-allowed" in outcome.text


def test_preview_of_a_teams_project_produces_a_report(
    installed: Path, tools: Toolchain, tmp_path: Path
) -> None:
    program = project(installed, tools, "python-previewed")
    (program.folder / ".venv").symlink_to(installed)
    program.create()
    stack = program.folder / "Pulumi.test.yaml"
    document = yaml.safe_load(stack.read_text())
    document["config"] = {"kubernetes:renderYamlToDirectory": "rendered"}
    stack.write_text(yaml.safe_dump(document))
    (program.folder / "policies" / "config").mkdir(parents=True)
    allowed = {"image-registry-allowed": {"allowedRegistries": ["registry.invalid"]}}
    (program.folder / "policies" / "config" / "test.json").write_text(json.dumps(allowed))
    out = tmp_path / "preview"
    command = ["gitops", "preview", "--stack", "test", "--project", str(program.folder)]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--out", str(out)],
        cwd=CHECKOUT,
        env=program.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text())
    assert {row["after"] for row in report["gpus"]} == {8}
    assert "image-registry-allowed" in {found["rule"] for found in report["violations"]}
    assert (out / "comment.md").read_text().startswith("<!-- gpu-platform preview test -->")


@pytest.fixture(scope="module")
def yaml_program(installed: Path, tools: Toolchain) -> Program:
    program = project(installed, tools, "yaml", (language_hosts(),))
    program.create()
    outcome = program.up()
    assert outcome.status == 0, outcome.text
    return program


def test_yaml_program_creates_a_run_and_serves_it(yaml_program: Program) -> None:
    manifests, outputs = yaml_program.manifests(), yaml_program.outputs()
    job = manifests["Job", outputs["run"]]
    assert job["metadata"]["namespace"] == "vision"
    assert job["spec"]["queue"] == "vision"
    assert job["spec"]["minAvailable"] == 2
    command = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert "--learning-rate=0.01" in command
    assert manifests["PersistentVolumeClaim", "checkpoints"]["spec"]["storageClassName"] == "shared"
    assert manifests["ResourceQuota", "workloads"]["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "16"
    }
    assert ("Deployment", "model") in manifests
    assert outputs["url"] == "http://model.vision.svc.cluster.local:8080"


def test_yaml_program_deploys_monitoring_of_runs_and_nodes(yaml_program: Program) -> None:
    manifests = yaml_program.manifests()
    recorder = manifests["Deployment", "failure-recorder"]
    assert recorder["metadata"]["namespace"] == "vision"
    pod = recorder["spec"]["template"]["spec"]
    assert "--lines=100" in pod["containers"][0]["command"]
    assert {"name": "claim-0", "persistentVolumeClaim": {"claimName": "checkpoints"}} in pod[
        "volumes"
    ]
    controller = manifests["Deployment", "node-health"]
    assert controller["metadata"]["namespace"] == "gpu-node-health"
    command = controller["spec"]["template"]["spec"]["containers"][0]["command"]
    assert {"--namespace=vision", "--max-nodes=2"} <= set(command)
    assert ("PrometheusRule", "gpu-platform") in manifests
    assert ("PodMonitor", "training") in manifests


def test_dependencies_of_a_run_are_created_first_and_deleted_last(
    yaml_program: Program,
) -> None:
    assert {"storage", "queues", "team"} <= yaml_program.dependencies(JOB)


def test_a_second_update_of_a_yaml_program_changes_nothing(yaml_program: Program) -> None:
    outcome = yaml_program.preview("--expect-no-changes")
    assert outcome.status == 0, outcome.text


def test_secret_argument_of_the_plugin_is_not_written_to_any_file(
    installed: Path, tools: Toolchain, yaml_program: Program
) -> None:
    program = project(installed, tools, "yaml-secret", (language_hosts(),))
    file = program.folder / "Pulumi.yaml"
    document = yaml.safe_load(file.read_text())
    document["config"]["token"] = {"type": "string", "secret": True}
    for component in ("digits", "model"):
        document["resources"][component]["properties"]["env"] = {"TOKEN": "${token}"}
    program.create()
    file.write_text(yaml.safe_dump(document))
    set_secret = ("config", "set", "--secret", "--stack", program.stack, "token")
    assert program.run(*set_secret, "correct-horse").status == 0
    for outcome in (program.preview("--diff"), program.up()):
        assert outcome.status != 0
        assert "resource 'digits' has a problem: env contains a secret" in outcome.text
        assert "correct-horse" not in outcome.text
    stored = [f for place in (program.folder, program.backend) for f in place.rglob("*")]
    assert any("history" in f.parts for f in stored if f.is_file())
    assert [f for f in stored if f.is_file() and b"correct-horse" in f.read_bytes()] == []


IMAGES = {"training": f"registry.example.com/training@sha256:{'7' * 64}"}
PLATFORM: dict[str, Any] = {
    "name": "gpu-platform",
    "runtime": "yaml",
    "outputs": {
        "namespace": "ml",
        "queues": ["research"],
        "claims": {"checkpoints": "shared-checkpoints"},
        "gpuNodes": {
            "resource": "nvidia.com/gpu",
            "nodeSelector": {},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        "images": {},
        "runs": {},
        "inference": {},
    },
}


def documented_program(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(block)


def platform(folder: Path, program: Program) -> None:
    """Create the stack that a program reads."""
    folder.mkdir()
    outputs = PLATFORM["outputs"] | {"images": IMAGES}
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(PLATFORM | {"outputs": outputs}))
    stack = replace(
        program, folder=folder, stack="prod", path_directories=(language_hosts(),), variables={}
    )
    stack.create()
    assert stack.up().status == 0


def test_documented_program_works_and_reports_the_documented_errors(
    installed: Path, tools: Toolchain, tmp_path: Path
) -> None:
    (tmp_path / "team").mkdir()
    team = Program(tmp_path / "team", tools, tmp_path / "backend", (language_hosts(),))
    platform(tmp_path / "platform", team)
    document = yaml.safe_load(documented_program("yaml"))
    # `pulumi install` understands only this form.
    assert document["packages"] == {
        "gpu-platform": f"https://github.com/OWNER/REPOSITORY/gpu_platform@v{VERSION}"
    }
    document["packages"]["gpu-platform"] = str(installed.parent / "source" / "gpu_platform")
    document["config"] = {"kubernetes:renderYamlToDirectory": "rendered"}
    (team.folder / "Pulumi.yaml").write_text(yaml.safe_dump(document))
    team.create()
    outcome = team.up()
    assert outcome.status == 0, outcome.text
    job = team.manifests()["Job", team.outputs()["run"]]
    assert job["metadata"]["namespace"] == "ml"
    volumes = job["spec"]["tasks"][0]["template"]["spec"]["volumes"]
    claims = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes]
    assert "shared-checkpoints" in claims

    job = document["resources"]["digits"]["properties"]
    job["nodes"] = 0
    job["hyperparameters"]["learningRate"] = 20
    (team.folder / "Pulumi.yaml").write_text(yaml.safe_dump(document))
    outcome = team.preview()
    assert outcome.status != 0
    (shown,) = re.findall(r"```\n *(error: .*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines():
        assert line.strip() in outcome.text
    assert "Traceback" not in outcome.text

    job["platform"] = f"organization/{document['name']}/{team.stack}"
    (team.folder / "Pulumi.yaml").write_text(yaml.safe_dump(document))
    message = f"has a problem: Stack '{job['platform']}' cannot be used as a platform"
    assert message in team.preview().text


def test_the_pack_accepts_a_teams_program_with_its_configuration(
    installed: Path, tools: Toolchain, tmp_path: Path
) -> None:
    folder = tmp_path / "team"
    shutil.copytree(CHECKOUT / "examples" / "team-stack", folder)
    (folder / ".venv").symlink_to(installed)
    settings = {"vision-team:platform": "organization/gpu-platform/prod"}
    settings |= {"vision-team:queue": "research", "kubernetes:renderYamlToDirectory": "rendered"}
    (folder / "Pulumi.vision.yaml").write_text(yaml.safe_dump({"config": settings}))
    team = Program(folder, tools, tmp_path / "backend", stack="vision")
    platform(tmp_path / "platform", team)
    team.create()
    pack = ("--policy-pack", installed_pack(installed))
    refused = team.preview(*pack)
    assert refused.status != 0
    assert "training-queue-declared" in refused.text
    accepted = team.preview(*pack, "--policy-pack-config", "policies/config/vision.json")
    assert accepted.status == 0, accepted.text


def test_each_of_many_jobs_results_in_a_run(
    installed: Path, tools: Toolchain, tmp_path: Path
) -> None:
    """Run the program in docs/scale.md with the jobs of the page's example."""
    folder = tmp_path / "sweep"
    shutil.copytree(CHECKOUT / "examples" / "many-jobs", folder)
    (folder / ".venv").symlink_to(installed)
    file = folder / "Pulumi.sweep.yaml"
    document = yaml.safe_load(file.read_text())
    document["config"]["vision-sweep:cluster"] = {"render_to": "rendered"}
    file.write_text(yaml.safe_dump(document))
    sweep = Program(folder, tools, tmp_path / "backend", stack="sweep")
    platform(tmp_path / "platform", sweep)
    sweep.create()
    outcome = sweep.up()
    assert outcome.status == 0, outcome.text
    runs, manifests = sweep.outputs()["runs"], sweep.manifests()
    assert sorted(runs) == ["large-batches", "small-batches"]
    for run in runs.values():
        job = manifests["Job", run["name"]]
        assert job["metadata"]["namespace"] == "ml"
        assert job["spec"]["queue"] == "research"
        (container,) = job["spec"]["tasks"][0]["template"]["spec"]["containers"]
        assert container["image"] == IMAGES["training"]


@pytest.mark.slow
def test_typescript_program_creates_the_same_run(
    installed: Path, tools: Toolchain, yaml_program: Program
) -> None:
    hosts = language_hosts()
    program = project(installed, tools, "typescript", (hosts,))
    (program.folder / "node_modules").symlink_to(node_modules())
    schema = program.folder / "schema.json"
    schema.write_text(Provider().schema or "")
    sdk = program.folder / "sdk" / "nodejs"
    subprocess.run([str(hosts / "pulumi-nodejs-sdk"), str(schema), str(sdk)], check=True)
    program.create()
    outcome = program.up()
    assert outcome.status == 0, outcome.text
    # Pulumi compiles the program before running it, so a wrong type would have failed the update.
    job = program.manifests()["Job", program.outputs()["run"]]
    assert job["spec"]["tasks"][0]["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    same = yaml_program.manifests()["Job", yaml_program.outputs()["run"]]
    assert job["spec"]["minAvailable"] == same["spec"]["minAvailable"]
    index = program.folder / "index.ts"
    written = index.read_text()
    index.write_text(
        documented_program("typescript").replace("@owner/gpu-platform", "./sdk/nodejs")
    )
    platform(installed.parent / "platform", program)
    documented = program.preview()
    assert documented.status == 0, documented.text
    assert JOB in documented.text
    index.write_text(written.replace('kind: "nfs"', 'kind: "nsf"'))
    refused = program.preview()
    assert refused.status != 0
    assert '"nsf"\' is not assignable' in refused.text
