"""Which names may appear in which sources, where no compiler or linter knows the rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for folder in ("uzipmpi", "algorithms", "kernels")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".pyi", ".cpp", ".hpp", ".cu"}
}


def sources_with(pattern: str) -> set[str]:
    """Return the sources that have a line matching ``pattern``."""
    return {name for name, text in SOURCES.items() if re.search(pattern, text, re.MULTILINE)}


def test_the_sources_are_here() -> None:
    assert {"uzipmpi/__init__.py", "algorithms/__init__.py", "kernels/bindings.cpp"} <= set(SOURCES)


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"^\s*(from|import) mpi4py\b", r"uzipmpi/|algorithms/"),
        (r"#include <pybind11", r"kernels/bindings(\.cpp|_gpu\.cu)$"),
        (r"\b(cuda|hip)[A-Z_]\w*|\b__(CUDA|HIP)\w*", r"kernels/platform\.hpp$|.*\.py$"),
        (r"#include <(cuda|hip)", r"kernels/platform\.hpp$"),
    ],
    ids=["mpi4py", "pybind11", "vendor names", "vendor headers"],
)
def test_a_name_stays_in_its_files(pattern: str, allowed: str) -> None:
    assert {name for name in sources_with(pattern) if not re.match(allowed, name)} == set()


def test_cupy_is_imported_in_one_module_at_most() -> None:
    assert len(sources_with(r"^\s*(from|import) cupy\b")) <= 1
