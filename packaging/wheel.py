#!/usr/bin/env python3
"""Packs static programs and the Python package into two wheels for every Linux of x86-64: the programs are the same, what Python loads
is for glibc or for musl, and pip takes the one that fits.   wheel.py STATIC_BIN GLIBC_BIN LICENCES DEST

STATIC_BIN holds the programs and libtessera.so for musl, GLIBC_BIN libtessera.so for glibc. Checks first that the programs need no
library of the machine that they will run on, and the libraries no more than its C library. The same input gives the same bytes."""
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

import elf

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "tessera_ckpt"
TAGS = {"glibc": ["manylinux_2_17_x86_64", "manylinux2014_x86_64"], "musl": ["musllinux_1_2_x86_64"]}
COMMANDS = ["ckpt-inspect", "ckpt-reshard", "ckpt-convert"]
DATE = (2026, 1, 1, 0, 0, 0)


def version():
    return re.search(r"project\(tessera VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def metadata(tag_version):
    readme = (ROOT / "README.md").read_text()
    return f"""Metadata-Version: 2.1
Name: tessera-ckpt
Version: {tag_version}
Summary: Open, prove, reshard and convert sharded training checkpoints: no GPU, no model code, bounded memory
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Description-Content-Type: text/markdown

{readme}"""


class Wheel:
    def __init__(self, path, stem):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.stem = stem
        self.record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, DATE)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (0o100000 | mode) << 16
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        name = f"{self.stem}.dist-info/RECORD"
        self.record.append(f"{name},,")
        self.zip.writestr(zipfile.ZipInfo(name, DATE), "\n".join(self.record) + "\n")
        self.zip.close()


def main(bin_folder, glibc_folder, licences, dest):
    programs = {"tessera": "tessera", **{c: "tessera-launcher" for c in COMMANDS}}
    if (bin_folder / "tessera-hdf5").exists():
        programs["tessera-hdf5"] = "tessera-hdf5"
    else:
        print("wheel.py: without tessera-hdf5: the wheel reads no HDF5 files", file=sys.stderr)
    for source in sorted(set(programs.values())):
        elf.require_static(bin_folder / source)
    libraries = {"glibc": glibc_folder / "libtessera.so", "musl": bin_folder / "libtessera.so"}
    elf.require_library(libraries["glibc"], elf.GLIBC, newest=(2, 17))
    elf.require_library(libraries["musl"], elf.MUSL)
    dest.mkdir(parents=True, exist_ok=True)
    stem = f"{NAME}-{version()}"
    for old in dest.glob(f"{stem}-*.whl"):
        old.unlink()  # pip would have to choose
    for libc, library in libraries.items():
        print(pack(dest, stem, TAGS[libc], library, {name: bin_folder / source for name, source in programs.items()}, licences))


def pack(dest, stem, tags, library, programs, licences):
    path = dest / f"{stem}-py3-none-{'.'.join(tags)}.whl"
    wheel = Wheel(path, stem)
    for file in sorted((ROOT / "python/tessera").iterdir()):
        if file.is_file():
            wheel.add(f"tessera/{file.name}", file.read_bytes())
    wheel.add("tessera/libtessera.so", library.read_bytes(), 0o755)
    for name, source in programs.items():
        wheel.add(f"{stem}.data/scripts/{name}", source.read_bytes(), 0o755)
    wheel.add(f"{stem}.dist-info/METADATA", metadata(version()).encode())
    lines = "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    wheel.add(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\n{lines}".encode())
    wheel.add(f"{stem}.dist-info/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    for file in sorted(p for p in licences.rglob("*") if p.is_file()):
        wheel.add(f"{stem}.dist-info/licenses/third_party/{file.relative_to(licences)}", file.read_bytes())
    wheel.close()
    return path


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*map(pathlib.Path, sys.argv[1:]))
