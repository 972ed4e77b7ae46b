"""The life of a communicator: what is made from it, what it takes along, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from mpi4py import MPI

from uzipmpi import handle as handles
from uzipmpi import selection
from uzipmpi.comm_base import CommBase
from uzipmpi.config import AGREED, Config
from uzipmpi.errors import ConfigError, Error
from uzipmpi.handle import Handle
from uzipmpi.progress import Operation, Stages
from uzipmpi.transports.transfer import Transfer

if TYPE_CHECKING:
    from uzipmpi.comm import Comm

__all__ = ["Life"]

Self = TypeVar("Self", bound="Life")

PREDEFINED = {"COMM_WORLD": MPI.COMM_WORLD, "COMM_SELF": MPI.COMM_SELF}
# With these, errors of the private duplicate end as those of the communicator. A handler written
# by the user would be called with a communicator that he does not know.
INHERITED_HANDLERS = (MPI.ERRORS_ARE_FATAL, MPI.ERRORS_ABORT, MPI.ERRORS_RETURN)


class Life(CommBase):
    """Communicators made from one keep its class and options, as far as they are of one kind."""

    # The class of what Split, Create and so on make; None: this one. A topology has another.
    _subset_class: ClassVar[type[Comm] | None] = None
    # The name of the constant of MPI's module whose place the object has taken.
    _constant = ""

    def __new__(cls: type[Self], comm: MPI.Comm | None = None, **options: Any) -> Self:
        if comm is not None:
            cls._mpi_class(comm)  # TypeError if it is no such communicator
        # Not super(): Python takes only the first of a topology's two base classes for that.
        return MPI.Intracomm.__new__(cls, comm)

    def __init__(self, comm: MPI.Comm | None = None, **options: Any) -> None:
        if self == MPI.COMM_NULL:
            return
        handle = handles.of(self)
        if handle is None:
            try:
                config: Config | ConfigError = selection.check(Config.resolve(**options))
            except ConfigError as error:
                config = error  # raised on all ranks, which otherwise would wait for this one
            handle = handles.agree(self, config)
            self._attach(handle, handle.config)
        else:
            config = selection.check(handle.config.replace(**options))
            _check_agreed(handle, config)
            self._attach(handle, config)

    def __reduce__(self) -> str | tuple[Any, ...]:
        for name, comm in PREDEFINED.items():
            if self == comm:
                if self._constant:
                    return _constant, (name,)
                return _predefined, (type(self), name, self.config)
        return super().__reduce__()

    @classmethod
    def fromhandle(cls, handle: int) -> MPI.Comm:
        """Return a wrapper if the handle was wrapped before; else what mpi4py makes of it."""
        comm = super().fromhandle(handle)
        if isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL and handles.of(comm):
            return cls(comm)
        return comm

    # Duplicates

    def Dup(self: Self, info: MPI.Info | None = None) -> Self:
        """Duplicate; class and options go along."""
        end = self._endpoint
        new = super().Dup(info)
        new._adopt(end.handle.heir(end.handle.private.Dup(), end.config))
        return new

    def Clone(self: Self) -> Self:
        """Duplicate; class and options go along."""
        return self.Dup()

    def Dup_with_info(self: Self, info: MPI.Info) -> Self:
        """Duplicate with hints; class and options go along."""
        return self.Dup(info)

    def Idup(self: Self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """Begin to duplicate; class and options go along."""
        end = self._endpoint
        new, request = super().Idup(info)
        private, duplicated = end.handle.private.Idup()
        operation = Operation()

        def stages() -> Stages:
            yield Transfer(request)
            yield Transfer(duplicated)
            new._adopt(end.handle.heir(private, end.config))

        return new, operation.begin(stages())

    def Idup_with_info(self: Self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        """Begin to duplicate with hints; class and options go along."""
        return self.Idup(info)

    # Communicators of some of the ranks

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Split; class and options go along."""
        return self._subset(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """Split by type; class and options go along."""
        return self._subset(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Comm:
        """Make the communicator of a group; class and options go along."""
        return self._subset(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """Make the communicator of a group, by its members; class and options go along."""
        return self._subset(super().Create_group(group, tag))

    def Shrink(self) -> Comm:
        """Make the communicator of the ranks that live; class and options go along."""
        return self._subset(super().Shrink())

    @classmethod
    def Create_from_group(
        cls: type[Self],
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Self:
        """Make the communicator of a group without a parent, and wrap it."""
        return cls(super().Create_from_group(group, stringtag, info, errhandler))

    # Error handlers

    def Set_errhandler(self, errhandler: MPI.Errhandler) -> None:
        """Set the error handler; one of MPI's own serves the traffic behind the scenes as well."""
        super().Set_errhandler(errhandler)
        if self._end is not None and errhandler in INHERITED_HANDLERS:
            self._end.handle.private.Set_errhandler(errhandler)

    # The end

    def Free(self) -> None:
        """Free the communicator.

        Raises
        ------
        mpi4py.MPI.Exception
            ``MPI.ERR_COMM`` for ``COMM_WORLD`` and ``COMM_SELF``, which stay as they are.
        """
        self._end_by(super().Free)

    def Disconnect(self) -> None:
        """Disconnect the communicator; raises for predefined ones, as ``Free`` does."""
        self._end_by(super().Disconnect)

    def free(self) -> None:
        """Call ``Free`` if neither null nor predefined.

        As in mpi4py a wrapper of ``COMM_WORLD`` or ``COMM_SELF`` becomes null, and they stay.
        """
        if not self._constant:
            super().free()
            if self == MPI.COMM_NULL:
                self._detach()

    # Private

    def _end_by(self, function: Callable[[], None]) -> None:
        if self in PREDEFINED.values():
            self.Call_errhandler(MPI.ERR_COMM)
            raise MPI.Exception(MPI.ERR_COMM)
        if self._end is not None:
            self._end.handle.disconnect()
        function()
        self._detach()

    def _adopt(self, handle: Handle) -> None:
        """Keep a new handle with the communicator, and use it."""
        handles.keep(self, handle)
        self._attach(handle, handle.config)

    def _subset(self, comm: MPI.Comm) -> Comm:
        return self._child(comm, cast("type[Comm]", self._subset_class or type(self)))

    def _child(self, comm: MPI.Comm, kind: type[Self]) -> Self:
        """Wrap a communicator that was made from this one."""
        child = kind.__new__(kind, comm)
        if comm != MPI.COMM_NULL:
            end = self._endpoint
            child._attach(handles.agree_among(comm, end.handle, end.config), end.config)
        return child


def _check_agreed(handle: Handle, config: Config) -> None:
    """Complain if a second wrapper of a handle wants what ranks did not agree on."""
    for name in AGREED:
        agreed, wanted = getattr(handle.config, name), getattr(config, name)
        if agreed != wanted:
            raise ConfigError(
                f"{name}: expected {agreed!r}, as the communicator was wrapped before, "
                f"found {wanted!r}"
            )


def _constant(name: str) -> MPI.Comm:
    """Unpickle what stands in MPI's module under this name."""
    comm = getattr(MPI, name)
    assert isinstance(comm, MPI.Comm)
    return comm


def _predefined(cls: type[Life], name: str, config: Config) -> Life:
    """Unpickle a wrapper of a predefined communicator."""
    comm = PREDEFINED[name]
    if comm.Get_size() > 1 and handles.of(comm) is None:
        raise Error(f"expected {name} wrapped on all ranks before a pickled wrapper is loaded")
    wrapper = cls.__new__(cls, comm)
    Life.__init__(wrapper, comm, **asdict(config))
    return wrapper
