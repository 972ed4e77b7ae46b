"""The emulated GPU, compiled once per session, and the samples of the CPU's tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Compiling both halves under sanitizers takes minutes: make gpu-hostile.
collect_ignore = [] if os.environ.get("UZIPMPI_SANITIZE") else ["test_hostile_frames.py"]
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

import emulated_module  # noqa: E402
from emulator import Emulator  # noqa: E402


@pytest.fixture(scope="session")
def gpu_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled GPU half for the emulated GPU: see emulated_module.py."""
    return emulated_module.build(tmp_path_factory.mktemp("gpu_module"))


@pytest.fixture(scope="session")
def emulator(gpu_module: Path) -> Emulator:
    """The GPU codec on this processor."""
    return Emulator(emulated_module.load(gpu_module))
