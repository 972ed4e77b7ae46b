"""Run an unmodified mpi4py program with its communicators wrapped.

A program decides itself when MPI is initialised, and with what ``mpi4py.rc``: so its own first
import of ``mpi4py.MPI`` is where ``COMM_WORLD`` and ``COMM_SELF`` are replaced, and options and
failures are left to ``python -m mpi4py``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from mpi4py import run

__all__ = ["run_program"]

TARGET = "mpi4py.MPI"
# Whose frames come before the program's own.
RUNNERS = (run.__name__, "runpy", "importlib._bootstrap")


def run_program(arguments: Sequence[str]) -> None:
    """Run a program as ``python -m mpi4py`` does, with its communicators wrapped.

    Parameters
    ----------
    arguments
        ``[-rc <key=value,...>] <pyfile> | -m <mod> | -c <cmd> | -`` and the program's arguments.
    """
    sys.excepthook = functools.partial(_show, sys.excepthook)
    if TARGET in sys.modules:  # by sitecustomize, or a .pth file
        wrap(sys.modules[TARGET])
    else:
        sys.meta_path.insert(0, _Finder())
    sys.argv[1:] = arguments
    run.main()


def wrap(mpi: ModuleType) -> None:
    """Put what is ours in the place of mpi4py's; collective, as MPI's start is.

    ``COMM_WORLD`` and ``COMM_SELF`` become wrappers, even if MPI has not been initialised: they can
    be used once it is. ``Request``, ``Prequest`` and ``Message`` become classes whose class methods
    serve compressed operations too.
    """
    from uzipmpi.comm import Comm  # not above: these import mpi4py.MPI
    from uzipmpi.message import Message
    from uzipmpi.persistent import Prequest
    from uzipmpi.progress import Request

    for kind in (Message, Prequest, Request):
        setattr(mpi, kind.__name__, kind)

    # Null, and then given their handles: mpi4py's constructor asks MPI, which may not run yet.
    wrappers = {name: Comm.__new__(Comm) for name in ("COMM_WORLD", "COMM_SELF")}
    for name, wrapper in wrappers.items():
        comm = getattr(mpi, name)
        ctypes.memmove(mpi._addressof(wrapper), mpi._addressof(comm), mpi._sizeof(comm))
        wrapper._constant = name
        setattr(mpi, name, wrapper)
        # Where pickle finds mpi4py's own constant: it pickles a plain wrapper of that by name.
        globals()[name] = comm

    def agree() -> None:
        for wrapper in wrappers.values():
            Comm.__init__(wrapper)

    if mpi.Is_initialized():
        agree()
    else:
        mpi.Init = _then(mpi.Init, agree)  # type: ignore[attr-defined]
        mpi.Init_thread = _then(mpi.Init_thread, agree)  # type: ignore[attr-defined]


def _then(function: Callable[..., Any], afterwards: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that calls one after the other."""

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        afterwards()
        return result

    return both


class _Finder(MetaPathFinder):
    """Finds ``mpi4py.MPI`` once, where others find it, and has it wrapped when it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads as another loader does, and wraps what was loaded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        wrap(module)


def _show(
    hook: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Show an uncaught exception as python does: from the program's own frames on."""
    while trace is not None and _module_of(trace) != run.__name__:
        trace = trace.tb_next
    while trace is not None and _module_of(trace) in RUNNERS:
        trace = trace.tb_next
    hook(kind, error.with_traceback(trace), trace)


def _module_of(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__"))
