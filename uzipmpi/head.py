"""The head of a message whose values follow in parts on the private duplicate.

It travels as a message of the user's, with its communicator and tag, so MPI matches it as it
would the values. A message is a head if it is ``HEAD_BYTES`` long and starts with ``MAGIC``: a
sender whose values would look like one sends them in parts. The CRC guards it against damage.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from uzipmpi.algorithms.sendrecv import Parts
from uzipmpi.errors import FormatError
from uzipmpi.typing import Bytes, DType

__all__ = ["HEAD_BYTES", "Head", "starts_like_a_head"]

# Random once, constant since: no tensor starts like this by chance.
MAGIC = bytes.fromhex("c9f2e1087d5ba46b13d09e3a82f7c55e")
VERSION = 1
HOST = 0  # the parts travel from host memory through MPI

# magic, version, dtype, transport, length of the algorithm's name, tag, count, nbytes,
# chunk_bytes, fixed_stop, the name; then zeros and a CRC-32 of all before it.
FIELDS = struct.Struct("<16sBBBBIQQQQ16s60x")
CRC = struct.Struct("<I")
HEAD_BYTES = FIELDS.size + CRC.size
assert HEAD_BYTES == 136


class Head(NamedTuple):
    """What the receiver has to know before the parts arrive.

    Attributes
    ----------
    dtype, nbytes
        What was sent.
    tag
        The tag of the parts on the private duplicate.
    parts
        How the values were cut.
    """

    dtype: DType
    nbytes: int
    tag: int
    parts: Parts

    def pack(self) -> Bytes:
        """Return the ``HEAD_BYTES`` bytes of the message."""
        name = self.parts.algorithm.encode()
        fields = FIELDS.pack(
            MAGIC,
            VERSION,
            self.dtype,
            HOST,
            len(name),
            self.tag,
            self.nbytes // self.dtype.itemsize,
            self.nbytes,
            self.parts.chunk_bytes,
            self.parts.fixed_stop,
            name,
        )
        return np.frombuffer(fields + CRC.pack(zlib.crc32(fields)), np.uint8)

    @classmethod
    def unpack(cls, message: Bytes) -> Head | None:
        """Return the head that a message is, None if it is a plain message.

        Raises
        ------
        FormatError
            If it is a head that is damaged, or of another version of uzipmpi.
        """
        if message.size != HEAD_BYTES or not starts_like_a_head(message):
            return None
        content = message.tobytes()
        (found,) = CRC.unpack_from(content, FIELDS.size)
        if found != (expected := zlib.crc32(content[: FIELDS.size])):
            raise FormatError(
                f"damaged message head: expected CRC {expected:#010x}, found {found:#010x}"
            )
        _, version, code, transport, length, tag, count, nbytes, chunk, fixed, name = (
            FIELDS.unpack_from(content)
        )
        if version != VERSION or transport != HOST:
            raise FormatError(
                f"expected a message head of version {VERSION} with transport {HOST}, "
                f"found version {version} with transport {transport}"
            )
        if code not in DType.__members__.values():
            raise FormatError(
                f"expected a message head with a data type of 0..{max(DType)}, found {code}"
            )
        dtype = DType(code)
        if count * dtype.itemsize != nbytes:
            raise FormatError(
                f"expected a message head of {count} values of {dtype.name}, found {nbytes} bytes"
            )
        return cls(
            dtype, nbytes, tag, Parts(name[:length].decode("ascii", "replace"), chunk, fixed)
        )


def starts_like_a_head(message: Bytes) -> bool:
    """Whether a message begins with the magic bytes."""
    return message[: len(MAGIC)].tobytes() == MAGIC
