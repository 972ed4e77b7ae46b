"""What a frame is: encoding and decoding, without MPI."""

from __future__ import annotations
