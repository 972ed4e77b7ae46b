"""Random operations on random communicators for some minutes, compared with plain mpi4py.

All ranks draw the same steps from the seed and the number of the step, so a step can be repeated:
``make soak SEED=1 STEP=77`` begins with step 77.
"""

from __future__ import annotations

import argparse
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable

from collectives import many_calls, one_call
from draws import VERBOSE, Draw, Pool, telling
from messages import one_by_one, shift, storm
from mpi4py import MPI
from watch import Memory, Watchdog, resident_bytes

import uzipmpi
from uzipmpi.algorithms import registry, sendrecv

THREADS = 3
# Pools fill, and MPI makes connections: memory is compared from then on, or from half of the run.
WARM_UP_SECONDS = 300
SECONDS_PER_STEP = 90
ATTACHED_BYTES = 16 << 20

Step = Callable[[uzipmpi.Comm, Draw, Pool, int], None]


def beside_messages(comm: uzipmpi.Comm, draw: Draw, pool: Pool, most_bytes: int) -> None:
    """Several collectives at once, and messages meanwhile."""
    many_calls(comm, draw, pool, most_bytes, storm)


def beside_a_call(comm: uzipmpi.Comm, draw: Draw, pool: Pool, most_bytes: int) -> None:
    """Several collectives at once, and another one meanwhile."""
    many_calls(comm, draw, pool, most_bytes, one_call)


# The commonest first.
STEPS: tuple[Step, ...] = (
    one_call,
    one_call,
    one_call,
    storm,
    storm,
    one_by_one,
    shift,
    beside_messages,
    beside_a_call,
)


def draw_options(draw: Draw, own: Draw) -> dict[str, object]:
    """Draw options: the codec for this rank, everything else for all."""
    options: dict[str, object] = {
        name: draw.among(("auto", *registry.names(name)))
        for name in ("allreduce", "reduce", "reduce_scatter", "allgather", "bcast")
    }
    options["p2p"] = draw.among(("auto", *sendrecv.ALGORITHMS))
    options["min_bytes"] = draw.among((0, 0, 0, 2048, 100_000))
    options["chunk_bytes"] = draw.among((8192, 65_536, 1 << 20))
    options["verify"] = draw.chance(0.3)
    options["codec"] = own.among(("auto", "tier", "ans", "raw"))
    options["threads"] = own.among((1, 1, 2))
    return options


def take_step(comm: uzipmpi.Comm, draw: Draw, pool: Pool) -> None:
    """Take one step of those in the list on a communicator."""
    step = draw.among(STEPS)
    most_bytes = draw.among((1 << 12, 1 << 16, 1 << 18, 1 << 18, 1 << 20))
    if draw.chance(0.03):
        most_bytes = 8 << 20
    own = Draw(*draw.words, 1 << 21, comm.Get_rank())
    options = draw_options(draw, own)
    with telling(f"{step.__name__} with {options}"), comm.options(**options):
        step(comm, draw, pool, most_bytes)


class Soak:
    """A run: communicators, and kinds of steps on them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.pool = Pool(seed)
        world = MPI.COMM_WORLD
        self.base = uzipmpi.Comm(world.Dup(), compress="always", min_bytes=0)
        self.of_threads = [self.base.Dup() for _ in range(THREADS)]
        self.failure = threading.Event()

    def draw(self, *words: int) -> Draw:
        """Return the choices for some words."""
        return Draw(self.seed, *words)

    def kind_of(self, step: int) -> Callable[[int], None]:
        """Draw what kind of step it is."""
        kinds = (self.on_base, self.on_base, self.on_base, self.on_new, self.in_threads)
        return self.draw(step, 1).among(kinds)

    def on_base(self, step: int) -> None:
        """On the communicator of all."""
        take_step(self.base, self.draw(step, 2), self.pool)

    def on_new(self, step: int) -> None:
        """On one that is made for the step."""
        draw = self.draw(step, 3)
        comm, part = self._make(draw)
        if comm == MPI.COMM_NULL:
            return
        for turn in range(1 + draw.below(2)):
            take_step(comm, self.draw(step, 4, part, turn), self.pool)
        comm.Free()

    def _make(self, draw: Draw) -> tuple[uzipmpi.Comm, int]:
        """Make a communicator; return it, and which part of the ranks it holds."""
        base, rank, size = self.base, self.base.Get_rank(), self.base.Get_size()
        kind = draw.among(("Dup", "Idup", "Split", "Split", "Create_group", "Create_cart"))
        if kind == "Dup":
            return base.Dup(), 0
        if kind == "Idup":
            comm, request = base.Idup()
            request.Wait()
            return comm, 0
        if kind == "Split":
            colors = [draw.below(3) - 1 for _ in range(size)]
            keys = [draw.below(size) for _ in range(size)]
            color = MPI.UNDEFINED if colors[rank] < 0 else colors[rank]
            return base.Split(color, keys[rank]), colors[rank]
        if kind == "Create_cart":
            dims = MPI.Compute_dims(size, 2)
            return base.Create_cart(dims, [True, draw.chance(0.5)], draw.chance(0.5)), 0
        members = draw.order(range(size))[: 1 + draw.below(size)]
        if rank not in members:
            return uzipmpi.Comm(), 0
        group = base.Get_group()
        some = group.Incl(members)
        comm = base.Create_group(some, 5)
        group.Free()
        some.Free()
        return comm, 0

    def in_threads(self, step: int) -> None:
        """In several threads, each with a communicator of its own."""
        failures: list[BaseException] = []

        def work(thread: int) -> None:
            try:
                for turn in range(2):
                    draw = self.draw(step, 5, thread, turn)
                    take_step(self.of_threads[thread], draw, self.pool)
            except BaseException as error:
                failures.append(error)
                traceback.print_exc()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failures:
            for thread in threads:
                thread.join(0.05)
        if failures:
            raise failures[0]


class Progress:
    """Says on rank 0 how far a run is; with SOAK_VERBOSE=1 at every step, and all ranks say more.

    Where MPI itself ends the program nothing else tells the step.
    """

    SECONDS = 10

    def __init__(self) -> None:
        self._next = time.monotonic() + self.SECONDS

    def note(self, step: int, what: str) -> None:
        """Note that a step begins."""
        if VERBOSE or time.monotonic() > self._next:
            self._next = time.monotonic() + self.SECONDS
            held = resident_bytes() >> 20
            print(f"step {step}: {what}, {held} MiB", flush=True)


def run(seed: int, minutes: float, first: int) -> None:
    """Take steps until the time is over."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    openmpi = " MPI=openmpi" if MPI.get_vendor()[0] == "Open MPI" else ""
    repeat = f"make soak SEED={seed} STEP=%d RANKS={size}{openmpi}"
    watchdog = Watchdog(rank, SECONDS_PER_STEP, repeat)
    watchdog.begin(first, "start")
    MPI.Attach_buffer(bytearray(ATTACHED_BYTES))
    soak = Soak(seed)
    memory = Memory()
    taken: Counter[str] = Counter()
    progress = Progress()
    now = time.monotonic()
    deadline, warm = now + 60 * minutes, now + min(WARM_UP_SECONDS, 30 * minutes)
    step = first
    while world.bcast(time.monotonic() < deadline):
        kind = soak.kind_of(step)
        watchdog.begin(step, kind.__name__)
        if rank == 0:
            progress.note(step, kind.__name__)
        try:
            kind(step)
        except BaseException:
            traceback.print_exc()
            print(f"failed: {watchdog.describe()}", flush=True)
            world.Abort(1)
        taken[kind.__name__] += 1
        step += 1
        if memory.before is None and time.monotonic() > warm:
            memory.measure()
    memory.measure()
    watchdog.begin(step, "end")
    report(soak, memory, taken)
    watchdog.end()


def report(soak: Soak, memory: Memory, taken: Counter[str]) -> None:
    """Print what was done; fail if memory grew."""
    world = MPI.COMM_WORLD
    memories = world.gather(str(memory))
    if memories is not None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(taken.items()))
        print(f"seed {soak.seed}: {sum(taken.values())} steps ({kinds}) without a fault")
        for rank, text in enumerate(memories):
            print(f"rank {rank}: {text}", flush=True)
    if not all(world.allgather(memory.flat)):
        raise SystemExit("memory grew by more than is allowed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--step", type=int, default=0, help="number of the first step")
    options = parser.parse_args()
    run(options.seed, options.minutes, options.step)
