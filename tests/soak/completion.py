"""Completing requests in every way there is."""

from __future__ import annotations

from draws import Draw, check, telling
from mpi4py import MPI

import uzipmpi

WAYS = (
    "Waitall",
    "waitall",
    "Waitany",
    "waitany",
    "Waitsome",
    "waitsome",
    "Wait",
    "Test",
    "Testall",
)


def complete(own: Draw, requests: list[MPI.Request]) -> list[MPI.Status]:
    """Complete all requests in a way drawn by this rank; return their statuses."""
    statuses = [MPI.Status() for _ in requests]
    way = own.among(WAYS)
    if way == "Testall" and any(map(is_persistent_mpis, requests)):
        way = "Test"
    if requests:
        with telling(f"{way} of {len(requests)} requests"):
            complete_by(way, own, requests, statuses)
    return statuses


def is_persistent_mpis(request: MPI.Request) -> bool:
    """Whether it is a persistent request of MPI's: MPICH 5.0's Testall fails with those of
    collectives now and then, and then says in their status that there was no error.
    """
    return isinstance(request, MPI.Prequest) and not is_ours(request)


def is_ours(request: MPI.Request) -> bool:
    """Whether uzipmpi made the request; ``isinstance`` takes mpi4py's for ours as well."""
    return type(request).__module__.startswith("uzipmpi")


def complete_by(
    way: str, own: Draw, requests: list[MPI.Request], statuses: list[MPI.Status]
) -> None:
    """Complete all requests, and store their statuses."""
    if way == "Waitall":
        MPI.Request.Waitall(requests, statuses)
    elif way == "waitall":
        uzipmpi.waitall(requests, statuses)
    elif way in ("Waitany", "waitany"):
        one_after_the_other(requests, statuses, ours=way == "waitany")
    elif way in ("Waitsome", "waitsome"):
        some_at_a_time(requests, statuses, ours=way == "waitsome")
    elif way == "Testall":
        while not uzipmpi.Request.Testall(requests, statuses):
            pass
    else:
        for place in own.order(range(len(requests))):
            if way == "Wait":
                requests[place].Wait(statuses[place])
            else:
                while not requests[place].Test(statuses[place]):
                    pass


def one_after_the_other(
    requests: list[MPI.Request], statuses: list[MPI.Status], ours: bool
) -> None:
    """Complete requests by ``Waitany``."""
    left = set(range(len(requests)))
    while left:
        status = MPI.Status()
        if ours:
            place, _ = uzipmpi.waitany(requests, status)
        else:
            place = MPI.Request.Waitany(requests, status)
        check(place in left, f"one of the requests {left}, found {place}")
        left.remove(place)
        statuses[place] = status


def some_at_a_time(requests: list[MPI.Request], statuses: list[MPI.Status], ours: bool) -> None:
    """Complete requests by ``Waitsome``."""
    left = set(range(len(requests)))
    while left:
        found: list[MPI.Status] = []
        if ours:
            places, _ = uzipmpi.waitsome(requests, found)
        else:
            places = MPI.Request.Waitsome(requests, found)
        check(bool(places) and left.issuperset(places), f"some of {left}, found {places}")
        for place, status in zip(places, found, strict=False):
            left.remove(place)
            statuses[place] = status
