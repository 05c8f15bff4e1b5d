#!/usr/bin/env python3
"""Packs static programs into a wheel for every Linux of x86-64.   wheel.py BIN_FOLDER LICENCES_FOLDER DEST

Checks first that the programs need no library of the machine that they will run on. The same input gives the same bytes."""
import base64
import hashlib
import pathlib
import re
import struct
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "tessera_ckpt"
TAGS = ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"]
COMMANDS = ["ckpt-inspect", "ckpt-reshard", "ckpt-convert"]
DATE = (2026, 1, 1, 0, 0, 0)


def version():
    return re.search(r"project\(tessera VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def require_static(path):
    """Exits where the ELF file asks for an interpreter or a shared library, or is not for x86-64."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or data[4] != 2 or struct.unpack_from("<H", data, 18)[0] != 62:
        sys.exit(f"wheel.py: {path} is no 64-bit ELF file for x86-64")
    offset, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    stack = 0
    for i in range(count):
        kind, _, at, _, _, length, in_memory = struct.unpack_from("<IIQQQQQ", data, offset + i * size)
        if kind == 0x6474e551:
            stack = in_memory
        if kind == 3:
            sys.exit(f"wheel.py: {path} asks for the interpreter {data[at:at + length - 1].decode()}")
        if kind == 2 and any(tag == 1 for tag, _ in struct.iter_unpack("<QQ", data[at:at + length])):
            sys.exit(f"wheel.py: {path} needs a shared library")
    # musl gives threads a stack of 128 KiB where the program does not ask for more.
    if path.name == "tessera" and stack < 8 << 20:
        sys.exit(f"wheel.py: {path} asks for {stack} bytes of stack a thread: link it with -Wl,-z,stack-size=16777216")


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


def main(bin_folder, licences, dest):
    programs = {"tessera": "tessera", **{c: "tessera-launcher" for c in COMMANDS}}
    if (bin_folder / "tessera-hdf5").exists():
        programs["tessera-hdf5"] = "tessera-hdf5"
    else:
        print("wheel.py: without tessera-hdf5: the wheel reads no HDF5 files", file=sys.stderr)
    for source in sorted(set(programs.values())):
        require_static(bin_folder / source)
    number = version()
    stem = f"{NAME}-{number}"
    dest.mkdir(parents=True, exist_ok=True)
    path = dest / f"{stem}-py3-none-{'.'.join(TAGS)}.whl"
    wheel = Wheel(path, stem)
    for file in sorted((HERE / "python/tessera").iterdir()):
        if file.is_file():
            wheel.add(f"tessera/{file.name}", file.read_text().replace("@VERSION@", number).encode())
    for name, source in programs.items():
        wheel.add(f"{stem}.data/scripts/{name}", (bin_folder / source).read_bytes(), 0o755)
    wheel.add(f"{stem}.dist-info/METADATA", metadata(number).encode())
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in TAGS)
    wheel.add(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\n{tags}".encode())
    wheel.add(f"{stem}.dist-info/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    for file in sorted(p for p in licences.rglob("*") if p.is_file()):
        wheel.add(f"{stem}.dist-info/licenses/third_party/{file.relative_to(licences)}", file.read_bytes())
    wheel.close()
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(pathlib.Path, sys.argv[1:]))
