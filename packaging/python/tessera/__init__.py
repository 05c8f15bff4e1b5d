"""Tessera's commands as a Python package: ``python -m tessera inspect PATH``, and where its program lies."""
from __future__ import annotations

import os
import sysconfig

__version__ = "@VERSION@"


def program() -> str:
    """The path of the program ``tessera``, which ``pip`` has put beside Python's own scripts.

    >>> import subprocess
    >>> subprocess.run([program(), "--version"], capture_output=True, text=True).stdout.split()[0]
    'tessera'
    """
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # pip install --target DIR: DIR/tessera/__init__.py and DIR/bin/tessera.
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    for folder in folders:
        path = os.path.join(folder, "tessera")
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"the program tessera is in none of {', '.join(folders)}: is tessera-ckpt installed whole?")
