"""Say in one line what is missing before pip says it in a hundred."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

if sys.version_info < (3, 10):
    raise SystemExit(f"uzipmpi needs Python 3.10 or newer, found {sys.version.split()[0]}")
if not Path(sysconfig.get_path("include"), "Python.h").is_file():
    raise SystemExit("Python.h is missing (Debian: apt install python3-dev)")
if not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")):
    raise SystemExit("no C++ compiler found (Debian: apt install g++)")
