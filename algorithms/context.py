"""What every algorithm is given beside its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from uzipmpi.algorithms.call import TRAILER_BYTES
from uzipmpi.algorithms.cuts import LEAST_BYTES, LEAST_GPU_BYTES, cut, piece_bytes, step_bytes
from uzipmpi.algorithms.scratch import Buffers, scratch
from uzipmpi.config import Config
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.kernels import codec
from uzipmpi.kernels.codec import HEADER_BYTES
from uzipmpi.transports.ipc import Ipc
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = [
    "ANS",
    "ANSWER",
    "CODEC_AT",
    "FLAGS_AT",
    "PACKED",
    "RAW",
    "TAGS_PER_CALL",
    "TAGS_PER_MESSAGE",
    "TIER",
    "Context",
    "Record",
    "as_sent",
]

# Phases and lanes of a call that run side by side have tags of their own.
TAGS_PER_CALL = 16
# Of a message: its parts', and the receiver's answer's, as parts of its own may go the same way.
TAGS_PER_MESSAGE = 2
ANSWER = 1

# Up to this many ranks chunks have their full size; they never shrink below the second figure.
FULL_CHUNK_RANKS = 8
LEAST_CHUNK_BYTES = 64 << 10

# Offsets in the frame header, and codes there (FORMAT.md).
DTYPE_AT = 5
CODEC_AT = 6
FLAGS_AT = 7
RAW, TIER, ANS = 0, 1, 2
PACKED = 2


@dataclass
class Record:
    """What the streams of one call sent and received.

    Attributes
    ----------
    value_bytes, wire_bytes
        Bytes of the values and of their frames, once for each destination.
    received_bytes
        Bytes of the frames that came in.
    frames, raw_frames
        Frames made by this rank, and those of them that hold the values as they are.
    """

    value_bytes: int = 0
    wire_bytes: int = 0
    received_bytes: int = 0
    frames: int = 0
    raw_frames: int = 0

    def count(self, frame: Bytes) -> None:
        """Count a frame that this rank has made."""
        self.frames += 1
        self.raw_frames += int(frame[CODEC_AT]) == RAW


@dataclass(frozen=True)
class Context:
    """One call of an operation.

    Parameters
    ----------
    transport
        How bytes reach a peer.
    config
        The options in force.
    tag
        The first of ``TAGS_PER_CALL`` tags that this call may use.
    record
        Counts what is sent.
    threads
        Threads of the codec.
    chunk_bytes
        Most bytes of values in a frame; 0: as ``config`` says, less for many ranks.
    gpus
        All ranks have a GPU, so chunks are of a size that suits these. Ranks cut alike, and none
        knows where the others' tensors are.
    call
        What must be the same on all ranks, as a word (see ``call.py``); 0 in messages.
    blocking
        The caller waits, so an algorithm may use MPI's own blocking collectives.
    pool
        Where the memory of messages comes from.
    ipc
        The connection of the ranks' GPUs, if there is one.
    nodes
        For each rank the lowest rank on its node; empty: each has a node of its own.
    ordered
        Which streams of a GPU come after which of the users': (theirs, ours).
    """

    transport: MpiHost
    config: Config
    tag: int
    record: Record = field(default_factory=Record)
    threads: int = 1
    chunk_bytes: int = 0
    gpus: bool = False
    call: int = 0
    blocking: bool = False
    pool: Buffers = scratch
    ipc: Ipc | None = None
    nodes: Sequence[int] = ()
    ordered: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.chunk_bytes:
            config = self.config
            largest = config.gpu_chunk_bytes if self.gpus else config.chunk_bytes
            most = fair_share(largest, self.size)
            chunk_bytes = step_bytes(min(most, staged_share(config, self.size)))
            object.__setattr__(self, "chunk_bytes", chunk_bytes)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.transport.size

    @property
    def message_bytes(self) -> int:
        """Size of a buffer that holds the frame of any chunk, and its trailer."""
        return HEADER_BYTES + self.chunk_bytes + TRAILER_BYTES

    def chunks(self, tensor: Tensor) -> list[Tensor]:
        """Cut a tensor into chunks of at most ``chunk_bytes`` that suit its size."""
        least = LEAST_GPU_BYTES if self.gpus else LEAST_BYTES
        return cut(tensor, piece_bytes(tensor.nbytes, self.chunk_bytes, least))

    def by_node(self) -> list[list[int]]:
        """Return the ranks of each node."""
        ranks: dict[int, list[int]] = {}
        for rank in range(self.size):
            ranks.setdefault(self.nodes[rank] if self.nodes else rank, []).append(rank)
        return list(ranks.values())

    def among(self, ranks: Sequence[int], tag: int) -> Context:
        """Return the context of a phase among some ranks, numbered by their place among them.

        Parameters
        ----------
        ranks
            They; this one is among them.
        tag
            The first of the phase's, counted from that of the call.
        """
        transport = self.transport.among(ranks)
        return dataclasses.replace(self, transport=transport, tag=self.tag + tag, nodes=())

    def encode(self, tensor: Tensor, out: Bytes) -> int:
        """Write the frame of a tensor to the start of ``out`` and return its size in bytes."""
        nbytes = codec.encode(
            tensor,
            out,
            codec="raw" if tensor.dtype is DType.BYTES else self.config.codec,
            verify=self.config.verify,
            threads=self.threads,
        )
        self.record.count(out)
        return nbytes

    def decode(self, frame: Bytes, tensor: Tensor) -> None:
        """Write the values of a frame to a tensor of as many bytes.

        Raises
        ------
        FormatError
            If the frame is damaged.
        MismatchError
            If it holds another tensor than the one expected.
        """
        place = as_sent(frame, tensor)
        try:
            codec.decode(frame, place, verify=self.config.verify, threads=self.threads)
        except FormatError:
            found = codec.info(frame)
            if (found.dtype, found.count) == (place.dtype, place.count):
                raise
            raise MismatchError(
                f"expected {place.count} values of {place.dtype.numpy.name}, "
                f"found {found.count} of {found.dtype.numpy.name}"
            ) from None


def fair_share(chunk_bytes: int, size: int) -> int:
    """Return ``chunk_bytes``, less for many ranks: scratch is a few chunks for each of them."""
    share = chunk_bytes * FULL_CHUNK_RANKS // max(size, FULL_CHUNK_RANKS)
    return max(share, min(chunk_bytes, LEAST_CHUNK_BYTES))


def staged_share(config: Config, size: int) -> int:
    """Return how large chunks may be for a GPU to have two folds of all ranks' under way.

    A fold has the frame of every other rank in the GPU's memory, that of the result, and a little
    more; all ranks cut alike, wherever their tensors are.
    """
    return config.max_staging_bytes // (2 * (size + 2)) - HEADER_BYTES


def as_sent(frame: Bytes, tensor: Tensor) -> Tensor:
    """Return the tensor with the frame's data type where one of the two is mere bytes.

    A rank packs values of a datatype unknown to us and sends bytes; its peers may hold floats.
    """
    if frame.size < HEADER_BYTES or (code := int(frame[DTYPE_AT])) == tensor.dtype:
        return tensor
    if DType.BYTES not in (code, tensor.dtype) or code not in DType.__members__.values():
        return tensor
    sent = DType(code)
    return Tensor(tensor.memory, sent) if tensor.nbytes % sent.itemsize == 0 else tensor
