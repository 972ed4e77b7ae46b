"""The table of algorithms."""

from __future__ import annotations

import pytest

import uzipmpi.algorithms
from uzipmpi.algorithms import registry
from uzipmpi.errors import ConfigError

assert uzipmpi.algorithms  # importing the package fills the table


def test_every_operation_has_its_algorithms() -> None:
    assert {"two_shot", "ring", "one_shot"} <= set(registry.names("allreduce"))
    assert {"direct", "ring"} <= set(registry.names("reduce_scatter"))
    assert {"direct", "ring"} <= set(registry.names("allgather"))
    assert {"binomial", "scatter_allgather"} <= set(registry.names("bcast"))
    assert "pairwise" in registry.names("alltoall")


def test_only_rings_leave_rank_order() -> None:
    assert registry.find("allreduce", "two_shot").rank_order
    assert not registry.find("allreduce", "ring").rank_order
    assert not registry.find("reduce_scatter", "ring").rank_order


def test_second_registration_of_a_name() -> None:
    with pytest.raises(ValueError, match="allreduce has an algorithm named 'ring' already"):
        registry.register("allreduce", name="ring")(print)


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"expected an algorithm among .*two_shot.*found 'rang'"):
        registry.find("allreduce", "rang")
