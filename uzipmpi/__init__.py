"""Faster MPI programs by lossless compression of floating-point tensors."""

from __future__ import annotations

from uzipmpi._version import __version__

__all__ = ["__version__"]
