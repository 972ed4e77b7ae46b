"""Run an mpi4py program with compressed communication, or say what is installed.

usage: mpirun -np N python -m uzipmpi [options] <pyfile> [arg] ...
       mpirun -np N python -m uzipmpi [options] -m <mod> [arg] ...
       mpirun -np N python -m uzipmpi [options] -c <cmd> [arg] ...
       mpirun -np N python -m uzipmpi [options] - [arg] ...
       python -m uzipmpi info

The program needs no change: its MPI.COMM_WORLD and MPI.COMM_SELF are uzipmpi.Comm. All ranks must
be started like this. An uncaught exception on one rank aborts all of them.

info                   print versions and capabilities
-h, --help             print this
--version              print the version
-rc <key=value,...>    set mpi4py.rc.key=value

Variables UZIPMPI_<OPTION> set the options of the communicators; UZIPMPI_STATS=1 prints at the end
what was sent and saved.
"""

from __future__ import annotations

import sys

from uzipmpi._version import __version__
from uzipmpi.run import run_program

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    arguments = sys.argv[1:]
    match arguments:
        case ["info"]:
            from uzipmpi.info import report  # not above: it initialises MPI

            print(report())
        case ["--version"]:
            print(f"uzipmpi {__version__}")
        case ["-h" | "--help"]:
            print(__doc__.strip())
        case []:
            sys.exit(__doc__.strip())
        case [option, *_] if option.startswith("--") and option != "--rc":
            sys.exit(f"unknown option {option}\n\n{__doc__.strip()}")
        case _:
            run_program(arguments)


if __name__ == "__main__":
    main()
