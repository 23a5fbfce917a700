"""A cut of PyTorch's CUDA build for machines without a GPU: 1 GB instead of 5 GB.

The package index has the CUDA build only, and its libraries want all of CUDA's at import. Here the
missing ones are replaced by stubs whose functions end the process with a message, the GPU code is
punched out of the libraries (its pages become holes), and headers and symbols are removed.
Training, DDP over gloo, saving and loading work; torch.compile and anything on a GPU do not.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

REMOVED = (
    "torch/include",
    "torch/test",
    "torch/share",
    "torch/bin/protoc*",
    "nvidia/cu13/include",
    "nvidia/cu13/lib/*.a",
    "**/tests",
    "bin",
)
STRIPPED = (
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_nvshmem.so",
    "libtorch_cpu.so",
    "libtorch_python.so",
)
GPU_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
# Prefixes of library names that are stubbed, and of the functions in them. libcuda.so.1, the
# driver's, is loaded on demand only: as a stub it would make torch believe in a GPU.
LIBRARIES = ("libcu", "libnv", "libnccl")
FUNCTIONS = (
    "cublas",
    "cufft",
    "cusolver",
    "cusparse",
    "nccl",
    "nvrtc",
    "nvshmem",
    "cudnn",
    "nvJitLink",
)
DATA = frozenset({"nvshmem_selected_device_transport"})


def cut(packages: Path) -> None:
    """Cuts the torch that is installed in the folder `packages`, in place."""
    for pattern in REMOVED:
        for path in list(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    libraries = packages / "torch" / "lib"
    present = sorted(libraries.glob("*.so*"))
    _stub(libraries, present, set(packages.glob("nvidia/*/lib/*.so*")))
    for name in STRIPPED:
        subprocess.run(["strip", "--strip-unneeded", str(libraries / name)], check=True)
        _punch(libraries / name)


def _stub(folder: Path, present: Sequence[Path], elsewhere: set[Path]) -> None:
    """Compiles stubs of the libraries that are needed and not there."""
    there = {path.name for path in present} | {path.name for path in elsewhere}
    needed: set[str] = set()
    undefined: set[str] = set()
    defined: set[str] = set()
    for library in present:
        for line in _lines("readelf", "--dynamic", "--wide", library):
            if "(NEEDED)" in line:
                needed.add(line.split("[")[1].split("]")[0])
        undefined |= _symbols("--undefined-only", library)
        defined |= _symbols("--defined-only", library)
    missing = sorted(n for n in needed - there if n != "libcuda.so.1" and n.startswith(LIBRARIES))
    functions = sorted(name for name in undefined - defined if name.startswith(FUNCTIONS))
    source = folder / "stub.c"
    source.write_text(stub_source(functions))
    for name in missing:
        # All functions are in the first library: the others only have to be there.
        text = str(source) if name == missing[0] else "/dev/null"
        flags = ["-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{name}"]
        subprocess.run(["gcc", *flags, "-o", str(folder / name), "-x", "c", text], check=True)
    source.unlink()


def stub_source(functions: Sequence[str]) -> str:
    """C source in which each function prints its name and aborts."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    for name in functions:
        if name in DATA:
            lines.append(f"char {name}[4096];")
        else:
            message = f"this PyTorch is cut for machines without a GPU, and {name} was called"
            lines.append(f'void {name}(void) {{ fputs("{message}\\n", stderr); abort(); }}')
    return "\n".join(lines) + "\n"


def _punch(library: Path) -> None:
    for line in _lines("readelf", "--section-headers", "--wide", library):
        fields = line.replace("[ ", "[").split()
        if len(fields) > 5 and fields[1] in GPU_SECTIONS:
            offset, size = int(fields[4], 16), int(fields[5], 16)
            where = ["--punch-hole", "--offset", str(offset), "--length", str(size)]
            subprocess.run(["fallocate", *where, str(library)], check=True)


def _symbols(which: str, library: Path) -> set[str]:
    return {line.split()[-1].split("@")[0] for line in _lines("nm", "--dynamic", which, library)}


def _lines(*command: object) -> list[str]:
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
