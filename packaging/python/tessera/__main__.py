import os
import sys

from tessera import program

if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
