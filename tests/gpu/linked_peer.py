"""Rank 1 of two, which sends to rank 0 until it is killed: ``linked_peer.py MODULE FILE CLASS``.

The class, in the file, is that of the rank. It writes its handle and reads the other's, a line
each.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

import emulated_module  # noqa: E402
import numpy as np  # noqa: E402

from uzipmpi.typing import DType  # noqa: E402

emulated_module.install(Path(sys.argv[1]))

rank = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(1, 2)
print(rank.links.handle.hex(), flush=True)
rank.links.connect(0, bytes.fromhex(sys.stdin.readline()))
values = rank.put(np.zeros(100_000, np.uint8))
while True:
    rank.exchange(DType.FLOAT32, sends=[(0, values)], timeout=60)
    rank.finish()
