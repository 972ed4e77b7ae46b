"""Every exception that uzipmpi raises of its own."""

from __future__ import annotations

__all__ = ["ConfigError", "Error", "FormatError", "MismatchError"]


class Error(Exception):
    """Base of uzipmpi's own exceptions."""


class FormatError(Error, ValueError):
    """A frame breaks FORMAT.md, is not the one that was expected, or its sender failed."""


class ConfigError(Error, ValueError):
    """An option has a value that uzipmpi does not know, or ranks disagree about it."""


class MismatchError(Error, ValueError):
    """Ranks called one operation with arguments that do not fit together."""
