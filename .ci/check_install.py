"""Check an installed uzipmpi: every layer imports, and nothing but uzipmpi was installed."""

from __future__ import annotations

import importlib
from importlib import metadata

distribution = metadata.distribution("uzipmpi")
installed = {file.parts[0] for file in distribution.files or ()}
expected = {"uzipmpi", f"uzipmpi-{distribution.version}.dist-info"}
if installed != expected:
    raise SystemExit(f"uzipmpi installs {sorted(installed)}, expected {sorted(expected)}")

for name in (
    "uzipmpi",
    "uzipmpi.algorithms",
    "uzipmpi.transports",
    "uzipmpi.kernels",
    "uzipmpi.kernels._codec",
):
    module = importlib.import_module(name)
    if "site-packages" not in (module.__file__ or ""):
        raise SystemExit(f"{name} comes from {module.__file__}, not from the installed package")

for file in ("py.typed", "kernels/FORMAT.md"):
    if not distribution.locate_file(f"uzipmpi/{file}").is_file():
        raise SystemExit(f"uzipmpi/{file} is missing from the installed package")

for name in ("algorithms", "kernels", "transports", "tests"):
    if importlib.util.find_spec(name) is not None:
        raise SystemExit(f"a top-level module {name} can be imported beside uzipmpi")
