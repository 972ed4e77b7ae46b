"""Transfers: any size, sizes that are told, failures that their owner meets; or ``large`` ones."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mpi4py import MPI

from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.transports.transfer import Transfer, wait_any


def complete(transfer: Transfer, by_waiting: bool) -> None:
    while not transfer.finished():
        if by_waiting:
            wait_any([transfer])


def sizes(host: MpiHost, by_waiting: bool) -> None:
    dest, source = (host.rank + 1) % host.size, (host.rank - 1) % host.size
    before = host.messages_sent, host.bytes_sent
    for nbytes in (0, 1, 136, 65537, 3_000_001):
        message = np.arange(nbytes, dtype=np.uint64).astype(np.uint8)
        place = np.zeros(nbytes + 10, np.uint8)
        receiving = host.irecv(place, source, 5)
        sending = host.isend(message, dest, 5)
        complete(receiving, by_waiting)
        complete(sending, by_waiting)
        assert receiving.nbytes == nbytes
        assert np.array_equal(place[:nbytes], message)
        assert not place[nbytes:].any()
    assert host.messages_sent - before[0] == 5
    assert host.bytes_sent - before[1] == 1 + 136 + 65537 + 3_000_001


def failure(host: MpiHost, by_waiting: bool) -> None:
    """A message larger than its buffer fails its own transfer, once, and no other."""
    dest, source = (host.rank + 1) % host.size, (host.rank - 1) % host.size
    large = np.ones(1 << 20, np.uint8)
    # With room behind: Open MPI 5.0 reports the error, but writes the whole message.
    small = np.zeros_like(large)[:10]
    receives = [host.irecv(small, source, 6), host.irecv(np.zeros_like(large), source, 7)]
    sends = [host.isend(large, dest, tag) for tag in (6, 7)]
    with pytest.raises(MPI.Exception) as caught:
        complete(receives[0], by_waiting)
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert receives[0].finished()
    for transfer in (receives[1], *sends):
        complete(transfer, by_waiting)
    assert receives[1].nbytes == large.size
    wait_any([*receives, *sends])  # nothing is left to wait for: must return


def large(host: MpiHost) -> None:
    """More bytes than a 32-bit count, into a buffer that is larger still."""
    nbytes = 2**31 + 16
    if host.rank == 0:
        message = np.zeros(nbytes, np.uint8)
        message[-3:] = 1, 2, 3
        complete(host.isend(message, 1, 8), by_waiting=True)
    elif host.rank == 1:
        place = np.zeros(nbytes + 64, np.uint8)
        receiving = host.irecv(place, 0, 8)
        complete(receiving, by_waiting=True)
        assert receiving.nbytes == nbytes
        assert place[nbytes - 4 : nbytes + 1].tolist() == [0, 1, 2, 3, 0]


def main() -> None:
    host = MpiHost(MPI.COMM_WORLD.Dup())
    if sys.argv[1:] == ["large"]:
        large(host)
        return
    for by_waiting in (False, True):
        sizes(host, by_waiting)
        failure(host, by_waiting)


if __name__ == "__main__":
    main()
