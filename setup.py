"""Compiles ``uzipmpi.kernels._codec`` from every kernels/*.cpp; everything else is in setup.cfg."""

from __future__ import annotations

from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

codec = Pybind11Extension(
    "uzipmpi.kernels._codec",
    sorted(str(source) for source in Path("kernels").glob("*.cpp")),
    depends=["setup.py", *sorted(str(header) for header in Path("kernels").glob("*.hpp"))],
    include_dirs=["kernels"],
    cxx_std=17,
    # Contraction into FMA would change the bits of a reduction from one machine to the next.
    extra_compile_args=["-O3", "-pthread", "-ffp-contract=off"],
    extra_link_args=["-pthread"],
)

ParallelCompile("UZIPMPI_BUILD_JOBS", default=0).install()
setup(ext_modules=[codec])
