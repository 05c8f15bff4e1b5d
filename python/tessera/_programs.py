"""Where the wheel's programs are."""

import os
import sysconfig


def program(name):
    """The path of a program of the wheel, which pip has put beside Python's own scripts; None where it is not there."""
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # pip install --target DIR: DIR/tessera/__init__.py and DIR/bin/tessera.
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None
