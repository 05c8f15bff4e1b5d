"""``python -m tessera inspect PATH``: the commands that the wheel has installed, where Python's scripts are not in PATH."""

import os
import sys

from ._programs import program

path = program("tessera")
if path is None:
    sys.exit("tessera: the program tessera is not beside Python's scripts: it comes with the wheel")
os.execv(path, [path, *sys.argv[1:]])
