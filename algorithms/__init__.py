"""How ranks exchange frames. Importing this package fills the table of algorithms."""

from __future__ import annotations

from uzipmpi.algorithms import (  # noqa: F401
    allgather_direct,
    allgather_ring,
    allreduce_hierarchical,
    allreduce_one_shot,
    allreduce_ring,
    allreduce_two_shot,
    alltoall_pairwise,
    bcast_binomial,
    bcast_scatter_allgather,
    gather_linear,
    gathered,
    reduce_scatter_direct,
    reduce_scatter_ring,
    reduce_two_shot,
    scan_direct,
    scatter_linear,
)
