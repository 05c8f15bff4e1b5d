#!/usr/bin/env python3
"""Lays the pinned sources of this folder out below DEST, each library under its name, with the licences in DEST/licenses. Does nothing
where they lie there already.   unpack.py DEST"""
import hashlib
import pathlib
import shutil
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
LICENCES = {"CLI11": "LICENSE", "d3": "LICENSE", "fmt": "LICENSE.rst", "ftxui": "LICENSE", "hdf5": "COPYING", "nlohmann_json": "LICENSE",
            "xxhash": "LICENSE", "zlib-ng": "LICENSE.md", "zstd": "LICENSE"}


def name_of(path):
    """zlib-ng-2.3.3.tar.xz: zlib-ng."""
    return path.name.rsplit("-", 1)[0]


def unpack(archive, dest):
    """The files of the archive without its own top folder."""
    with tarfile.open(archive) as source:
        for member in source:
            parts = pathlib.PurePosixPath(member.name).parts[1:]
            if not member.isfile() or ".." in parts:
                continue
            file = dest.joinpath(*parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(source.extractfile(member).read())


def main():
    dest = pathlib.Path(sys.argv[1]).resolve()
    archives = sorted(HERE.glob("*.tar.xz"))
    folders = [p for p in sorted(HERE.iterdir()) if p.is_dir() and name_of(p) in LICENCES]
    stamp = "".join(f"{hashlib.sha256(a.read_bytes()).hexdigest()}  {a.name}\n" for a in archives) + "".join(f"{f.name}\n" for f in folders)
    complete = dest / ".complete"
    if complete.is_file() and complete.read_text() == stamp:
        return
    shutil.rmtree(dest, ignore_errors=True)
    (dest / "licenses").mkdir(parents=True)
    for archive in archives:
        unpack(archive, dest / name_of(archive))
    for folder in folders:
        shutil.copytree(folder, dest / name_of(folder))
    for name, licence in LICENCES.items():
        shutil.copy(dest / name / licence, dest / "licenses" / f"{name}.txt")
    complete.write_text(stamp)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
