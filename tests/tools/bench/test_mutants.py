import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from tools.bench.mutant_tests import Recording, replaced

SOURCE = '''
LIMIT = 3


def first(size: int = 2) -> int:
    """Return something."""
    return size + 1


@decorated(4)
def second(text: str) -> list[str]:
    text = text.strip()
    return [
        text,
        text.removeprefix("a"),
    ]
'''

FORKING = """
import multiprocessing, os
import pytest
import module

pytestmark = pytest.mark.unit

def test_double():
    assert module.double(2) == 4

def test_half():
    process = multiprocessing.get_context("fork").Process(target=half)
    process.start()
    process.join()
    assert process.exitcode == 3

def half():
    module.half(2)
    os._exit(3)
"""
RECORDER = """
import json
from pathlib import Path
import pytest
from tools.bench.mutant_tests import _Forking

forking = _Forking(files=[Path("module.py").resolve()])
status = pytest.main(["-q", "test_module.py"], plugins=[forking])
[lines] = forking.tests.values()
Path("lines.json").write_text(json.dumps(lines))
raise SystemExit(status)
"""


@pytest.fixture
def mutants() -> Any:
    """The module, which is slow to import: processes that only collect tests do not import it."""
    return importlib.import_module("tools.bench.mutants")


def mutants_of(mutants: Any, folder: Path, source: str) -> list[Any]:
    (folder / "module.py").write_text(source)
    return list(mutants.find(folder, "module.py"))


def test_only_bodies_of_functions_are_mutated(mutants: Any, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    found = mutants.find(tmp_path, "module.py")
    assert {change.summary for change in found.values()} == {
        "size + 1 -> size - 1",
        "1 -> 2",
        "text = text.strip() -> text = None",
        'text.removeprefix("a") -> text.removeprefix(None)',
        'text.removeprefix("a") -> text.removesuffix("a")',
        '"a" -> "XXaXX"',
        '"a" -> "A"',
    }
    changed = next(each for each in found.values() if each.summary == '"a" -> "A"')
    assert changed.text == SOURCE.replace('"a"', '"A"')
    assert changed.lines == range(13, 17), "a test of the statement's first line runs this one"


def test_unrelated_edits_do_not_change_the_sample(mutants: Any, tmp_path: Path) -> None:
    before = mutants_of(mutants, tmp_path, SOURCE)
    after = mutants_of(
        mutants, tmp_path, f"import os\n{SOURCE}\n\ndef third() -> int:\n    return 5\n"
    )
    assert set(before) < set(after)
    sample, [added] = mutants.draw(before, 4), set(after) - set(before)
    assert [mutant for mutant in mutants.draw(after, 5) if mutant != added][:4] == sample


def test_earlier_sample_is_matched_by_its_code(mutants: Any, tmp_path: Path) -> None:
    before = mutants_of(mutants, tmp_path, SOURCE)
    renamed = mutants_of(mutants, tmp_path, SOURCE.replace("first", "next_size"))
    assert {mutant.function for mutant in mutants.repeated(before, renamed) if mutant} == {
        "next_size",
        "second",
    }
    reworded = mutants_of(mutants, tmp_path, SOURCE.replace("size + 1", "size + 10"))
    assert mutants.repeated(before, reworded).count(None) == 2


def test_mutant_runs_the_tests_that_cover_its_lines_fastest_first() -> None:
    lines = {1: ["slow", "fast"], 2: ["other"]}
    recording = Recording({"slow": 3.0, "fast": 1.0, "other": 2.0}, {"module.py": lines})
    assert recording.choose("module.py", range(1, 2)) == ["fast", "slow"]
    assert recording.choose("module.py", range(1, 3)) == ["fast", "other", "slow"]
    assert recording.choose("module.py", range(7, 9)) == []
    assert recording.executes("module.py", range(1, 9))
    assert not recording.executes("module.py", range(7, 9))


def test_mutant_without_coverage_runs_tests_that_start_python_programs() -> None:
    recording = Recording({"plain": 1.0, "command": 2.0}, {}, ["command"])
    assert recording.choose("module.py", [1]) == ["command"]


def test_mutant_of_an_import_runs_all_tests() -> None:
    lines = {1: ["first"], 2: [""], 3: ["", "second"]}
    recording = Recording({"first": 1.0, "second": 2.0}, {"module.py": lines})
    assert recording.choose("module.py", [2]) == ["first", "second"]
    assert recording.choose("module.py", [3]) == ["second", "first"]


def test_mutated_file_is_restored_with_its_modification_time(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    before = path.stat().st_mtime_ns
    with replaced(path, "raise SystemExit"):
        assert path.read_text() == "raise SystemExit"
    assert (path.read_text(), path.stat().st_mtime_ns) == (SOURCE, before)


def test_module_that_gangs_run_lists_its_tests() -> None:
    modules = {"training/train.py": ("tests/training/test_train.py", "tests/test_b.py::test_x[2-")}
    seconds = {
        "tests/training/test_train.py::test_a": 2.0,
        "tests/test_b.py::test_x[1-sgd]": 1.0,
        "tests/test_b.py::test_x[2-sgd]": 1.0,
    }
    lines = {
        "training/train.py": {
            8: ["tests/training/test_train.py::test_a", "tests/test_b.py::test_x[1-sgd]"]
        }
    }
    recording = Recording(seconds, lines, modules=modules)
    assert recording.choose("training/train.py", [8]) == ["tests/training/test_train.py::test_a"]
    # Line 7 was not recorded, for example because the processes that execute it are killed.
    assert recording.choose("training/train.py", [7]) == [
        "tests/test_b.py::test_x[2-sgd]",
        "tests/training/test_train.py::test_a",
    ]
    assert recording.executes("training/train.py", [7])
    assert recording.choose("training/run.py", [7]) == []


def test_listed_training_modules_and_their_tests_exist(mutants: Any) -> None:
    for module, tests in mutants.TRAINING.items():
        assert (CHECKOUT / module).is_file()
        for test in tests:
            assert (CHECKOUT / test.partition("::")[0]).is_file()


def test_lines_of_forks_and_of_their_forks_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
    )
    (tmp_path / "test_module.py").write_text(FORKING)
    (tmp_path / "recorder.py").write_text(RECORDER)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = unit\n")
    program = [sys.executable, "recorder.py"]
    environment = os.environ | {"PYTHONPATH": f"{CHECKOUT}:{tmp_path}"}
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "lines.json").read_text()) == {
        "2": ["test_module.py::test_double"],
        "6": ["test_module.py::test_half"],
    }
