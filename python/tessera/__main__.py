"""``python -m tessera inspect PATH``: the commands that the wheel has installed, where Python's scripts are not in PATH."""

import os
import sys
import sysconfig


def program(name="tessera"):
    """The path of a program of the wheel, which pip has put beside Python's own scripts; None where it is not there."""
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # pip install --target DIR: DIR/tessera/__init__.py and DIR/bin/tessera.
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None


if __name__ == "__main__":
    path = program()
    if path is None:
        sys.exit("tessera: the program tessera is not beside Python's scripts: it comes with the wheel")
    os.execv(path, [path, *sys.argv[1:]])
