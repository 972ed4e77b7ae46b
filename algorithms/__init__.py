"""How ranks exchange frames. Importing this package fills the table of algorithms."""

from __future__ import annotations

from uzipmpi.algorithms import (  # noqa: F401
    allgather_direct,
    allreduce_two_shot,
    alltoall_pairwise,
    bcast_binomial,
    bcast_scatter_allgather,
    gather_linear,
    reduce_scatter_direct,
    reduce_two_shot,
    scatter_linear,
)
