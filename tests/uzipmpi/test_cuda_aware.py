"""Whether MPI takes GPU memory, by what it says and by what surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from uzipmpi import cuda_aware
from uzipmpi.errors import ConfigError


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find it out again."""
    for name in ("UZIPMPI_CUDA_AWARE", "UCX_MODULE_DIR"):
        monkeypatch.delenv(name, raising=False)
    cuda_aware.cuda_aware.cache_clear()
    yield
    cuda_aware.cuda_aware.cache_clear()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Let the process have an MPI that answers so, and maybe UCX."""

    def have(answer: int | None, *, ucx: bool = False) -> None:
        paths = {
            "/libmpi": "/lib/libmpi.so",
            "/libucp": str(tmp_path / "libucp.so") if ucx else None,
        }
        monkeypatch.setattr(cuda_aware, "_mapped", paths.get)
        functions = {} if answer is None else {"MPIX_Query_cuda_support": lambda: answer}
        monkeypatch.setattr(cuda_aware.ctypes, "CDLL", lambda path: SimpleNamespace(**functions))

    return have


@pytest.mark.parametrize("answer", [1, 0, None])
def test_mpi_is_asked(library: Callable[..., None], answer: int | None) -> None:
    library(answer)
    found, why = cuda_aware.cuda_aware()
    assert found == (answer == 1)
    assert "MPIX_Query_cuda_support" in why


def test_ucx_needs_its_module(library: Callable[..., None], tmp_path: Path) -> None:
    library(1, ucx=True)
    assert cuda_aware.cuda_aware() == (False, "UCX has no CUDA module")
    cuda_aware.cuda_aware.cache_clear()
    (tmp_path / "ucx").mkdir()
    (tmp_path / "ucx" / "libuct_cuda.so.0").touch()
    assert cuda_aware.is_cuda_aware()


@pytest.mark.parametrize(("word", "aware"), [("1", True), ("0", False), ("yes", True)])
def test_the_variable_wins(
    library: Callable[..., None], monkeypatch: pytest.MonkeyPatch, word: str, aware: bool
) -> None:
    library(0 if aware else 1)
    monkeypatch.setenv("UZIPMPI_CUDA_AWARE", word)
    assert cuda_aware.is_cuda_aware() == aware


def test_another_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UZIPMPI_CUDA_AWARE", "perhaps")
    with pytest.raises(ConfigError, match="UZIPMPI_CUDA_AWARE: expected 0 or 1, found 'perhaps'"):
        cuda_aware.cuda_aware()
