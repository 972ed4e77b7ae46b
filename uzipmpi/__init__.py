"""Faster MPI programs by lossless compression of floating-point tensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from uzipmpi._version import __version__
from uzipmpi.config import Config, rc
from uzipmpi.errors import ConfigError, Error, FormatError, MismatchError

if TYPE_CHECKING:
    from mpi4py import MPI

    from uzipmpi.algorithms.operators import AVG, Op
    from uzipmpi.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
    from uzipmpi.frames import compress, compress_bound, decompress, frame_info
    from uzipmpi.message import Message
    from uzipmpi.persistent import Prequest
    from uzipmpi.progress import Request
    from uzipmpi.requests import testall, testany, testsome, waitall, waitany, waitsome
    from uzipmpi.stats import Stats

    BFLOAT16: MPI.Datatype
    FLOAT8_E4M3FN: MPI.Datatype
    FLOAT8_E5M2: MPI.Datatype

__all__ = [
    "AVG",
    "BFLOAT16",
    "FLOAT8_E4M3FN",
    "FLOAT8_E5M2",
    "Cartcomm",
    "Comm",
    "Config",
    "ConfigError",
    "Distgraphcomm",
    "Error",
    "FormatError",
    "Graphcomm",
    "Message",
    "MismatchError",
    "Op",
    "Prequest",
    "Request",
    "Stats",
    "__version__",
    "compress",
    "compress_bound",
    "decompress",
    "frame_info",
    "rc",
    "testall",
    "testany",
    "testsome",
    "waitall",
    "waitany",
    "waitsome",
]

# Imported at first use: importing mpi4py's MPI initialises MPI, which the codec alone does not
# need.
_HOMES = {
    "AVG": "uzipmpi.algorithms.operators",
    "Cartcomm": "uzipmpi.comm",
    "Comm": "uzipmpi.comm",
    "Distgraphcomm": "uzipmpi.comm",
    "Graphcomm": "uzipmpi.comm",
    "Message": "uzipmpi.message",
    "Op": "uzipmpi.algorithms.operators",
    "Prequest": "uzipmpi.persistent",
    "Request": "uzipmpi.progress",
    "Stats": "uzipmpi.stats",
    "compress": "uzipmpi.frames",
    "compress_bound": "uzipmpi.frames",
    "decompress": "uzipmpi.frames",
    "frame_info": "uzipmpi.frames",
    "testall": "uzipmpi.requests",
    "testany": "uzipmpi.requests",
    "testsome": "uzipmpi.requests",
    "waitall": "uzipmpi.requests",
    "waitany": "uzipmpi.requests",
    "waitsome": "uzipmpi.requests",
}
_DATATYPES = ("BFLOAT16", "FLOAT8_E4M3FN", "FLOAT8_E5M2")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _DATATYPES:
        from uzipmpi import buffers
        from uzipmpi.typing import DType

        value = buffers.datatype(DType[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
