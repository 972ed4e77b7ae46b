"""Options: a keyword beats ``uzipmpi.rc``, which beats ``UZIPMPI_*``, which beats the default."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uzipmpi.errors import ConfigError

__all__ = ["AGREED", "CODECS", "MEASURED", "Config", "Rc", "rc", "summary_wanted"]

CODECS = ("auto", "tier", "ans", "raw")
CHOICES = {
    "codec": CODECS,
    "compress": ("auto", "always", "never"),
    "transport": ("auto", "mpi-host", "mpi-device", "ipc", "shm"),
    "log": ("debug", "info", "warning", "error", "critical"),
}
# Variables that are no options: of a run, of the build, of the tests.
OTHER_VARIABLES = (
    *("STATS", "CUDA_AWARE", "SIMD"),
    *("GPU", "GPU_ARCHS", "BUILD_JOBS", "SANITIZE"),
    *("TEST_GPU", "TEST_JOB", "TEST_WRITERS"),
)
# As min_bytes: what links and codec give is measured, and the option becomes a size.
MEASURED = -1
# At least a frame header and one tile: smaller chunks would be all overhead.
MIN_CHUNK_BYTES = 64
GPU_CHUNK_BYTES = 16 << 20
# A few chunks of the least size for each of a node's GPUs.
MIN_STAGING_BYTES = 1 << 20


@dataclass(frozen=True)
class Config:
    """The options of a communicator.

    Parameters
    ----------
    codec
        ``auto``, ``tier``, ``ans`` or ``raw``. Ranks may differ: a frame names its codec.
    compress
        ``auto``: only what leaves the node; ``always``; ``never``: plain MPI.
    p2p, allreduce, reduce, reduce_scatter, allgather, alltoall, bcast, gather, scatter
        Name of an algorithm, or ``auto``.
    min_bytes
        Smaller messages, of a call or between two ranks within a collective, are not compressed.
        -1: from the size on that pays, measured when the communicator is made.
    chunk_bytes
        Bytes of values in one frame of a stream; unless set, 16 MiB where values are in GPU memory.
    threads
        Threads of the codec; 0: usable cores divided by the ranks on the node.
    verify
        Send and check a checksum with every frame.
    transport
        How the values of GPU buffers reach a peer. ``mpi-host``: through host memory, with any MPI;
        ``mpi-device``: handed to an MPI that takes GPU memory; ``ipc``: by kernels of GPUs that
        reach each other's memory; ``shm``: by copy engines, through memory of the host, where each
        rank has a GPU of its own. ``auto``: blocking collectives by ``ipc`` or else ``shm``
        where one of them works, all else by ``mpi-device`` if MPI takes GPU memory, or
        ``mpi-host``.
    max_sms
        Most multiprocessors of a GPU that a kernel may occupy; 0: all.
    max_staging_bytes
        Most memory of a GPU that holds frames on their way. Larger tensors are cut. Exchanges by
        ``ipc`` have as much, per communicator, and by ``shm`` half as much of the host's besides.
    timeout
        Seconds after which an exchange gives up waiting for its peer's.
    log
        Level of the logger ``uzipmpi``.

    Raises
    ------
    ConfigError
        If a value is not one that the option can have.
    """

    codec: str = "auto"
    compress: str = "auto"
    p2p: str = "auto"
    allreduce: str = "auto"
    reduce: str = "auto"
    reduce_scatter: str = "auto"
    allgather: str = "auto"
    alltoall: str = "auto"
    bcast: str = "auto"
    gather: str = "auto"
    scatter: str = "auto"
    min_bytes: int = MEASURED
    chunk_bytes: int = 1024 * 1024
    threads: int = 0
    verify: bool = False
    transport: str = "auto"
    max_sms: int = 0
    max_staging_bytes: int = 160 * 1000 * 1000
    timeout: int = 60
    log: str = "warning"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name}: expected one of {', '.join(known)}, found {value!r}")
        for name, least in (
            ("min_bytes", MEASURED),
            ("chunk_bytes", MIN_CHUNK_BYTES),
            ("threads", 0),
            ("max_sms", 0),
            ("max_staging_bytes", MIN_STAGING_BYTES),
            ("timeout", 1),
        ):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name}: expected at least {least}, found {value}")

    @classmethod
    def resolve(cls, **options: Any) -> Config:
        """Return the options in force: ``options``, else ``rc``, else the environment.

        Raises
        ------
        ConfigError
            If an option is unknown or has a value that it cannot have.
        """
        values = {**_from_environment(os.environ), **_from_rc(), **_checked(options, "option")}
        return cls(**values)

    @property
    def gpu_chunk_bytes(self) -> int:
        """``chunk_bytes`` of a message from a GPU's memory: unless it was set, it is larger there.

        A GPU makes a frame of 1 MiB in less time than Python takes to hand it on.
        """
        return self.chunk_bytes if self.sets_chunk_bytes else GPU_CHUNK_BYTES

    @property
    def sets_chunk_bytes(self) -> bool:
        """Whether ``chunk_bytes`` is another than by default."""
        return self.chunk_bytes != type(self).chunk_bytes

    def replace(self, **options: Any) -> Config:
        """Return a copy with some options changed, checked as by :meth:`resolve`.

        ``min_bytes=-1`` keeps what was measured.
        """
        values = _checked(options, "option")
        if values.get("min_bytes") == MEASURED:
            del values["min_bytes"]
        return dataclasses.replace(self, **values)


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
# What ranks must agree about. The others are a rank's own affair.
AGREED = tuple(name for name in FIELDS if name not in ("codec", "threads", "max_sms", "log"))


class Rc:
    """Options set by the program before a communicator is made; ``None`` is not set.

    Examples
    --------
    >>> import uzipmpi
    >>> uzipmpi.rc.codec = "ans"
    >>> uzipmpi.rc.codec = None
    """

    __slots__ = tuple(FIELDS)

    def __init__(self) -> None:
        for name in FIELDS:
            setattr(self, name, None)

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in _from_rc().items())
        return f"uzipmpi.rc({', '.join(given)})"


rc = Rc()


def cuda_aware() -> bool | None:
    """Whether ``UZIPMPI_CUDA_AWARE`` says that MPI takes GPU memory; None: to be found out."""
    text = os.environ.get("UZIPMPI_CUDA_AWARE") or "auto"
    return (
        None if text.strip().lower() == "auto" else bool(_parse("UZIPMPI_CUDA_AWARE", text, bool))
    )


def summary_wanted() -> bool:
    """Whether ``UZIPMPI_STATS`` asks for a table over all ranks when the program ends."""
    return bool(_parse("UZIPMPI_STATS", os.environ.get("UZIPMPI_STATS") or "0", bool))


def _from_rc() -> dict[str, Any]:
    given = {name: getattr(rc, name) for name in FIELDS if getattr(rc, name) is not None}
    return _checked(given, "uzipmpi.rc")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    _warn_of_unknown(environment)
    given = {name: environment.get(f"UZIPMPI_{name.upper()}") for name in FIELDS}
    return {
        name: _parse(f"UZIPMPI_{name.upper()}", text, type(FIELDS[name].default))
        for name, text in given.items()
        if text
    }


_unknown: set[str] = set()  # variables that were warned of


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Warn once of variables that mean nothing; a job that sets one for another version goes on."""
    known = [f"UZIPMPI_{name.upper()}" for name in (*FIELDS, *OTHER_VARIABLES)]
    given = {name for name in environment if name.startswith("UZIPMPI_")}
    for name in sorted(given.difference(known, _unknown)):
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
        logging.getLogger("uzipmpi").warning("unknown variable %s is ignored%s", name, meant)
        _unknown.add(name)


def _parse(variable: str, text: str, kind: type) -> Any:
    """Return the value that a string in the environment stands for; sizes may end in K, M or G."""
    word = text.strip().lower()
    if kind is str:
        return word
    if kind is bool:
        if word in ("0", "1", "false", "true", "no", "yes"):
            return word in ("1", "true", "yes")
        raise ConfigError(f"{variable}: expected 0 or 1, found {text!r}")
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(word[-1:], 1)
    digits = word if scale == 1 else word[:-1]
    if not digits.removeprefix("-").isdecimal():
        raise ConfigError(f"{variable}: expected a whole number, found {text!r}")
    return int(digits) * scale


def _checked(options: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the options with known names, each value of its option's type."""
    values = {}
    for name, value in options.items():
        if name not in FIELDS:
            raise ConfigError(f"unknown {origin} {name!r}; known are {', '.join(FIELDS)}")
        kind = type(FIELDS[name].default)
        if kind is int and not isinstance(value, bool) and hasattr(value, "__index__"):
            value = operator.index(value)  # NumPy's integers too
        if type(value) is not kind:
            raise ConfigError(f"{name}: expected {kind.__name__}, found {value!r}")
        values[name] = value
    return values
