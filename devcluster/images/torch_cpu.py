"""A reduced PyTorch for machines without a GPU: 0.5 GB instead of 5 GB.

The package index contains only the CUDA build, which needs all of CUDA's libraries at import. This
module replaces them with stubs whose functions abort with a message, cuts the GPU code out of
PyTorch's libraries, and removes headers, symbols and profilers. Training, DDP with gloo, saving and
loading work; torch.compile and computations on a GPU do not.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REMOVED_PATHS = (
    "torch/include",
    "torch/test",
    "torch/share",
    "torch/bin/protoc*",
    "nvidia/cu13/include",
    "nvidia/cu13/lib/*.a",
    "nvidia/cu13/lib/libcheckpoint.so",
    "nvidia/cu13/lib/libnvperf_*.so",
    "nvidia/cu13/lib/libpcsamplingutil.so",
    "**/tests",
    "bin",
)
STRIPPED_LIBRARIES = (
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_nvshmem.so",
    "libtorch_cpu.so",
    "libtorch_python.so",
)
GPU_CODE_SECTION: Final = ".nv_fatbin"
# Prefixes of the names of stubbed libraries, and of their functions. The driver's libcuda.so.1 has
# no stub, because it is loaded on demand, and a stub would make torch detect a GPU.
STUBBED_LIBRARIES = ("libcu", "libnv", "libnccl")
STUBBED_FUNCTIONS = (
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
# Symbols that match these prefixes, but are variables.
DATA_SYMBOLS = frozenset({"nvshmem_selected_device_transport"})


def cut(packages: Path) -> None:
    """Reduce the torch that is installed in the directory `packages`, in place."""
    for pattern in REMOVED_PATHS:
        for path in list(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    libraries = packages / "torch" / "lib"
    present = sorted(libraries.glob("*.so*"))
    _build_stubs(libraries, present, set(packages.glob("nvidia/*/lib/*.so*")))
    for name in STRIPPED_LIBRARIES:
        subprocess.run(["strip", "--strip-unneeded", str(libraries / name)], check=True)
        drop_section(libraries / name, GPU_CODE_SECTION)


def _build_stubs(directory: Path, present: Sequence[Path], other_libraries: set[Path]) -> None:
    """Compile stubs of the libraries that are needed but missing."""
    available = {path.name for path in present} | {path.name for path in other_libraries}
    needed: set[str] = set()
    undefined: set[str] = set()
    defined: set[str] = set()
    for library in present:
        for line in _lines("readelf", "--dynamic", "--wide", library):
            if "(NEEDED)" in line:
                needed.add(line.split("[")[1].split("]")[0])
        undefined |= _symbols("--undefined-only", library)
        defined |= _symbols("--defined-only", library)
    missing = sorted(
        n for n in needed - available if n != "libcuda.so.1" and n.startswith(STUBBED_LIBRARIES)
    )
    functions = sorted(name for name in undefined - defined if name.startswith(STUBBED_FUNCTIONS))
    source = directory / "stub.c"
    source.write_text(stub_source(functions))
    for name in missing:
        # All functions are in the first library. The other libraries only have to exist.
        text = str(source) if name == missing[0] else "/dev/null"
        flags = ["-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{name}"]
        subprocess.run(["gcc", *flags, "-o", str(directory / name), "-x", "c", text], check=True)
    source.unlink()


def stub_source(functions: Sequence[str]) -> str:
    """Return C source in which each function prints its name and aborts."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    for name in functions:
        if name in DATA_SYMBOLS:
            lines.append(f"char {name}[4096];")
        else:
            message = f"this PyTorch is reduced for machines without a GPU, and {name} was called"
            lines.append(f'void {name}(void) {{ fputs("{message}\\n", stderr); abort(); }}')
    return "\n".join(lines) + "\n"


class _Header(ctypes.Structure):
    """Header of a 64-bit ELF file (elf(5))."""

    _fields_ = (
        ("_identification", ctypes.c_char * 32),
        ("segments_at", ctypes.c_uint64),
        ("sections_at", ctypes.c_uint64),
        ("_flags_and_sizes", ctypes.c_uint16 * 4),
        ("segment_count", ctypes.c_uint16),
        ("_section_size", ctypes.c_uint16),
        ("section_count", ctypes.c_uint16),
        ("names_index", ctypes.c_uint16),
    )


class _Segment(ctypes.Structure):
    """Program header, which describes a segment that the loader maps."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("_flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("_physical", ctypes.c_uint64),
        ("file_size", ctypes.c_uint64),
        ("memory_size", ctypes.c_uint64),
        ("align", ctypes.c_uint64),
    )


class _Section(ctypes.Structure):
    """Section header."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("_flags", ctypes.c_uint64),
        ("_address", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("_others", ctypes.c_uint64 * 3),
    )


_LOAD, _NOTE, _NO_BITS = 1, 4, 8


def drop_section(library: Path, name: str) -> None:
    """Remove a read-only section from an ELF file. In memory, zeros replace the section.

    The surrounding segment is split in two. The program header of the second half replaces that of
    the build ID, because the table cannot grow. A library without the section or without a build ID
    is left unchanged.
    """
    content = bytearray(library.read_bytes())
    header = _Header.from_buffer(content)
    segments = (_Segment * header.segment_count).from_buffer(content, header.segments_at)
    sections = (_Section * header.section_count).from_buffer(content, header.sections_at)
    names = sections[header.names_index].offset
    text = name.encode() + b"\0"
    section = next((s for s in sections if content.startswith(text, names + s.name)), None)
    table = [_Segment.from_buffer_copy(s) for s in segments]
    build_id = next((s for s in table if s.type == _NOTE), None)
    if section is None or build_id is None:
        return
    first = next(
        s for s in table if s.type == _LOAD and 0 <= section.offset - s.offset < s.file_size
    )
    begin = -(-section.offset // first.align) * first.align
    end = (section.offset + section.size) // first.align * first.align
    if begin >= end:
        return
    section.type = _NO_BITS
    second, before = _Segment.from_buffer_copy(first), end - first.offset
    second.offset, second.address = end, first.address + before
    second.file_size, second.memory_size = first.file_size - before, first.memory_size - before
    first.file_size, first.memory_size = begin - first.offset, before
    table.remove(build_id)
    table.insert(table.index(first) + 1, second)
    for index, segment in enumerate(table):
        segments[index] = segment
    for entry in (*segments, *sections):
        if entry.offset >= end:
            entry.offset -= end - begin
    header.sections_at -= end - begin
    with library.open("wb") as file:
        file.write(memoryview(content)[:begin])
        file.write(memoryview(content)[end:])


def _symbols(option: str, library: Path) -> set[str]:
    return {line.split()[-1].split("@")[0] for line in _lines("nm", "--dynamic", option, library)}


def _lines(*command: object) -> list[str]:
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
