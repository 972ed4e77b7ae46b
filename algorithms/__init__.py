"""How ranks exchange frames."""

from __future__ import annotations
