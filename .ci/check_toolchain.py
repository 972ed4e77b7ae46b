"""Say in one line what is missing before pip says it in a hundred."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

if not Path(sysconfig.get_path("include"), "Python.h").is_file():
    raise SystemExit("Python.h is missing (Debian: apt install python3-dev)")
if not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")):
    raise SystemExit("no C++ compiler found (Debian: apt install g++)")
