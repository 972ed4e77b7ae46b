"""Tell what ranks see of their hosts, and how fast rank 0 sends to rank 1."""

from __future__ import annotations

import json
import socket

import numpy as np
from mpi4py import MPI

N_BYTES = 8 << 20

world = MPI.COMM_WORLD
names = world.allgather(socket.gethostname())
node_sizes = world.allgather(world.Split_type(MPI.COMM_TYPE_SHARED).size)
message = np.ones(N_BYTES, np.uint8)
world.Barrier()
start = MPI.Wtime()
if world.rank == 0:
    world.Send(message, 1)
    world.Recv(message[:1], 1)
    seen = {
        "names": names,
        "node_sizes": node_sizes,
        "bits_per_second": N_BYTES * 8 / (MPI.Wtime() - start),
    }
    print(json.dumps(seen))
elif world.rank == 1:
    world.Recv(message, 0)
    world.Send(message[:1], 0)
