"""Compiles ``uzipmpi.kernels._codec`` and, where it can, ``_gpu``; everything else is in setup.cfg.

UZIPMPI_GPU is ``cuda`` or ``hip`` to compile the GPU half whatever the machine, ``none`` to leave
it out, and ``auto`` (the default) to compile it where there is a GPU and its compiler.
UZIPMPI_GPU_ARCHS names other targets: "90", "gfx942". UZIPMPI_BUILD_JOBS is the number of compilers
that run at a time, by default that of processors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

# Names of DType, for kernels/types_gpu.hpp.
GPU_TYPES = ("kFloat64", "kFloat32", "kFloat16", "kBFloat16", "kFloat8E4M3FN", "kFloat8E5M2")
BUILD_JOBS = int(os.environ.get("UZIPMPI_BUILD_JOBS", 0)) or os.cpu_count() or 1
HEADERS = ["setup.py", *sorted(str(header) for header in Path("kernels").glob("*.hpp"))]


def gpu_compiler() -> list[str]:
    """Return the compiler and its targets; nothing to leave the GPU half out."""
    mode = os.environ.get("UZIPMPI_GPU", "auto")
    archs = os.environ.get("UZIPMPI_GPU_ARCHS", "").split()
    if mode == "auto":
        compilers = {"cuda": ("/dev/nvidiactl", "nvcc"), "hip": ("/dev/kfd", "hipcc")}
        here = [m for m, (gpu, cc) in compilers.items() if Path(gpu).exists() and shutil.which(cc)]
        mode = here[0] if here else "none"
    if mode == "hip":
        os.environ.setdefault("HIP_PLATFORM", "amd")  # or hipcc calls nvcc where it finds one
        targets = [f"--offload-arch={arch}" for arch in archs or ["gfx90a"]]
        return ["hipcc", "-x", "hip", "-fPIC", *targets]
    if mode == "cuda":
        known = subprocess.run(
            ["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True
        )
        archs = archs or [arch for arch in ("80", "90", "100") if f"sm_{arch}" in known.stdout]
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        newest = f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"
        return ["nvcc", "-Xcompiler=-fPIC", *targets, newest]
    if mode != "none":
        raise SystemExit(f"expected UZIPMPI_GPU to be auto, none, cuda or hip, found {mode}")
    return []


def gpu_units(sources: list[str], folder: Path) -> dict[Path, list[str]]:
    """Return the objects of the GPU half, those that take longest first, and what makes each.

    Kernels are a compilation for each data type; faces and bindings are one.
    """
    units = {}
    for source in sorted(map(Path, sources), key=lambda path: ("reduce" not in path.name, path)):
        once = "_face_" in source.name or source.name.startswith(("bindings", "runtime"))
        for dtype in ("",) if once else GPU_TYPES:
            options = [f"-DUZIP_TYPE={dtype}"] if dtype else []
            units[folder / f"{source.stem}{dtype}.o"] = [*options, str(source)]
    return units


class Build(build_ext):
    """Leaves the GPU half to its compiler."""

    def build_extension(self, extension: Extension) -> None:
        """Build one extension."""
        if not extension.name.endswith("._gpu"):
            super().build_extension(extension)
            return
        out = self.get_ext_fullpath(extension.name)
        if newer_group([*extension.sources, *extension.depends], out) or self.force:
            folder = Path(self.build_temp, "gpu")
            for place in (folder, Path(out).parent):
                place.mkdir(parents=True, exist_ok=True)
            includes = ["kernels", pybind11.get_include(), sysconfig.get_path("include")]
            options = ["-std=c++17", "-O3", *(f"-I{include}" for include in includes)]
            compiler = gpu_compiler()
            units = gpu_units(extension.sources, folder)

            def compile_unit(target: Path) -> None:
                self.spawn([*compiler, *options, "-c", "-o", str(target), *units[target]])

            with ThreadPoolExecutor(BUILD_JOBS) as pool:
                list(pool.map(compile_unit, units))
            linker = [word for word in compiler if word not in ("-x", "hip")]
            self.spawn([*linker, "-shared", "-o", out, *map(str, units)])


codec = Pybind11Extension(
    "uzipmpi.kernels._codec",
    sorted(str(source) for source in Path("kernels").glob("*.cpp")),
    depends=HEADERS,
    include_dirs=["kernels"],
    cxx_std=17,
    # Contraction into FMA would change the bits of a reduction from one machine to the next.
    extra_compile_args=["-O3", "-pthread", "-ffp-contract=off"],
    extra_link_args=["-pthread"],
)
gpu = Extension(
    "uzipmpi.kernels._gpu",
    sorted(str(source) for source in Path("kernels").glob("*.cu")),
    depends=HEADERS,
    optional=os.environ.get("UZIPMPI_GPU", "auto") == "auto",
)

ParallelCompile("UZIPMPI_BUILD_JOBS", default=BUILD_JOBS).install()
setup(ext_modules=[codec, *([gpu] if gpu_compiler() else [])], cmdclass={"build_ext": Build})
