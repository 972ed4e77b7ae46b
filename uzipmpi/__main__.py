"""``python -m uzipmpi info`` says what is installed."""

from __future__ import annotations

import argparse

from uzipmpi.info import report

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m uzipmpi", description=__doc__)
    parser.add_argument("command", choices=["info"], help="print versions and capabilities")
    parser.parse_args()
    print(report())


if __name__ == "__main__":
    main()
