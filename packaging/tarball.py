#!/usr/bin/env python3
"""Packs FOLDER, under its own name, into the tar.gz file DEST. The same files give the same bytes.   tarball.py FOLDER DEST"""
import gzip
import pathlib
import sys
import tarfile


def plain(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = "root"
    return member


def main(folder, dest):
    dest.parent.mkdir(parents=True, exist_ok=True)
    with open(dest, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as out:
        for path in [folder, *sorted(folder.rglob("*"))]:
            out.add(path, path.relative_to(folder.parent), recursive=False, filter=plain)
    print(dest)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*map(pathlib.Path, sys.argv[1:]))
