"""How bytes reach a peer."""

from __future__ import annotations
