"""A program that ends with requests under way; the argument says how it ends."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import uzipmpi

COUNT = 500_000
ending = sys.argv[1]
if ending == "early hook":
    atexit.register(lambda: comm.Sendrecv(values, peer, 3, received, peer, 3))
comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=1024)
peer = 1 - comm.rank
values, received = np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
unmatched = comm.Irecv(np.zeros(5000, np.float32), peer, 1)
comm.Isend(values, peer, 2)  # still to be sent when rank 1 ends
if ending == "fork":
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()  # as the interpreter does, without mpi4py's end of MPI
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert time.monotonic() - started < 1.5, "the child waited for its parent's messages"
elif ending == "multiprocessing":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, range(-3, 0)) == [3, 2, 1]
comm.Recv(received, peer, 2)
if not received.all():
    raise SystemExit("wrong values")
match ending:
    case "finalize":
        MPI.Finalize()
    case "exit":
        sys.exit(0)
    case "hook":
        atexit.register(comm.Sendrecv, values, peer, 3, received, peer, 3)
    case "persistent":
        sending, receiving = comm.Send_init(values, peer, 3), comm.Recv_init(received, peer, 3)
        sending.Start()
        receiving.Start()
    case "collective":
        begun = comm.Iallreduce(values, received)
    case "duplicate":
        copied = comm.Dup()
        copied.Isend(values, peer, 3)
        copied.Recv(received, peer, 3)
    case "thread":
        threading.Thread(target=comm.Sendrecv, args=(values, peer, 3, received, peer, 3)).start()
