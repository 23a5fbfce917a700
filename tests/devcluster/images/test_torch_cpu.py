"""Removal of GPU code from PyTorch: compiled stubs, and a small tree of packages."""

import ctypes
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.images import torch_cpu
from devcluster.images.torch_cpu import stub_source

needs_gcc = pytest.mark.skipif(
    not all(map(shutil.which, ("gcc", "strip", "readelf", "nm"))),
    reason="no C compiler is installed",
)


def compile_library(source: str, out: Path, *flags: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", *flags, "-o", str(out)]
    subprocess.run([*command, "-x", "c", "-"], input=source, text=True, check=True)


@needs_gcc
def test_called_stub_prints_the_function_name_and_aborts(tmp_path: Path) -> None:
    library = tmp_path / "libstub.so"
    compile_library(stub_source(["cublasCreate_v2", "ncclAllReduce"]), library)
    call = f"import ctypes; ctypes.CDLL({str(library)!r}).ncclAllReduce()"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    assert "without a GPU, and ncclAllReduce was called" in done.stderr


@needs_gcc
def test_stub_of_a_variable_is_a_data_symbol(tmp_path: Path) -> None:
    library = tmp_path / "libstub.so"
    compile_library(stub_source(sorted(torch_cpu.DATA_SYMBOLS)), library)
    (name,) = torch_cpu.DATA_SYMBOLS
    data = (ctypes.c_char * 4096).in_dll(ctypes.CDLL(str(library)), name)
    assert bytes(data) == b"\0" * 4096


@needs_gcc
def test_stripped_package_loads_without_the_missing_libraries(tmp_path: Path) -> None:
    packages, apart = tmp_path / "packages", tmp_path / "apart"
    libraries = packages / "torch" / "lib"
    named = "-Wl,-soname,libcublas.so.13"
    compile_library("void cublasGemm(void) {}", apart / "libcublas.so", named)
    (packages / "torch" / "include").mkdir(parents=True)
    (packages / "torch" / "_tests" / "tests").mkdir(parents=True)
    (packages / "bin").mkdir()
    using = "void cublasGemm(void); int use(int n) { if (n) cublasGemm(); return 7; }"
    for name in torch_cpu.STRIPPED_LIBRARIES:
        links = ("-Wl,--no-as-needed", f"-L{apart}", "-lcublas")
        compile_library(using, libraries / name, *links)
    torch_cpu.cut(packages)
    assert not (packages / "torch" / "include").exists()
    assert not (packages / "torch" / "_tests" / "tests").exists()
    assert not (packages / "bin").exists()
    assert sorted(path.name for path in libraries.iterdir()) == sorted(
        [*torch_cpu.STRIPPED_LIBRARIES, "libcublas.so.13"]
    )
    load = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).use(0))"
    done = subprocess.run(
        [sys.executable, "-c", load, str(libraries / "libtorch_cpu.so")],
        env={"LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


SECTION = '__attribute__((section(".nv_fatbin"))) const char code[1 << 20] = {1, 2, 3};'


@needs_gcc
def test_gpu_code_is_removed_from_the_file(tmp_path: Path) -> None:
    library = tmp_path / "libgpu.so"
    values = 'int before = 7; const char *text = "after"; int read(int i) { return code[i]; }'
    compile_library(f"{SECTION} {values}", library)
    before = library.stat().st_size
    torch_cpu.drop_section(library, ".nv_fatbin")
    assert before - library.stat().st_size >= (1 << 20) - 2 * 4096
    loaded = ctypes.CDLL(str(library))
    assert ctypes.c_int.in_dll(loaded, "before").value == 7
    assert ctypes.c_char_p.in_dll(loaded, "text").value == b"after"
    assert [loaded.read(index) for index in (1 << 13, 1 << 19)] == [0, 0]


@needs_gcc
@pytest.mark.parametrize("flags", [(), ("-Wl,--build-id=none", "-Wa,-mx86-used-note=no")])
def test_library_without_gpu_code_or_a_spare_header_is_unchanged(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    library = tmp_path / "libcpu.so"
    compile_library(SECTION if flags else "int seven = 7;", library, *flags)
    if flags:
        strip = ["strip", "--remove-section=.note*", str(library)]
        subprocess.run(strip, check=True)
    before = library.read_bytes()
    torch_cpu.drop_section(library, ".nv_fatbin")
    assert library.read_bytes() == before


def test_no_stubs_are_built_if_no_libraries_are_missing() -> None:
    assert "void" not in stub_source([])
