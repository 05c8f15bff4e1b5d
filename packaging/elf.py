"""What an ELF file for x86-64 asks of the machine that runs it."""
import re
import struct
import sys


class Elf:
    """Attributes: interpreter ("" for a static program or a library), needed (library names), versions (symbol versions that the
    needed libraries must have, as "GLIBC_2.17"), stack (bytes that a new thread's stack has under musl, 0 for its default)."""

    def __init__(self, path):
        self.path = path
        self.data = path.read_bytes()
        if self.data[:4] != b"\x7fELF" or self.data[4] != 2 or struct.unpack_from("<H", self.data, 18)[0] != 62:
            sys.exit(f"{path} is no 64-bit ELF file for x86-64")
        self.interpreter, self.stack, self._loads, self._dynamic = "", 0, [], {}
        self.needed, self.versions = [], []
        offset, = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        needed = []
        for i in range(count):
            kind, _, at, address, _, length, in_memory = struct.unpack_from("<IIQQQQQ", self.data, offset + i * size)
            if kind == 1:  # PT_LOAD
                self._loads.append((address, length, at))
            elif kind == 2:  # PT_DYNAMIC
                for tag, value in struct.iter_unpack("<QQ", self.data[at:at + length]):
                    if tag == 0:
                        break
                    if tag == 1:  # DT_NEEDED
                        needed.append(value)
                    self._dynamic[tag] = value
            elif kind == 3:  # PT_INTERP
                self.interpreter = self.data[at:at + length - 1].decode()
            elif kind == 0x6474e551:  # PT_GNU_STACK
                self.stack = in_memory
        self.needed = [self._string(value) for value in needed]
        at = self._dynamic.get(0x6ffffffe)  # DT_VERNEED
        for _ in range(self._dynamic.get(0x6fffffff, 0)):  # DT_VERNEEDNUM
            begin = self._offset(at)
            _, names, _, first, following = struct.unpack_from("<HHIII", self.data, begin)
            name_at = begin + first
            for _ in range(names):
                _, _, _, name, next_name = struct.unpack_from("<IHHII", self.data, name_at)
                self.versions.append(self._string(name))
                name_at += next_name
            at += following

    def _offset(self, address):
        for begin, length, at in self._loads:
            if begin <= address < begin + length:
                return address - begin + at
        sys.exit(f"{self.path}: the address {address} is in no segment")

    def _string(self, at):
        begin = self._offset(self._dynamic[5]) + at  # DT_STRTAB
        return self.data[begin:self.data.index(b"\0", begin)].decode()


def require_static(path):
    """Exits where the program asks for an interpreter or a shared library."""
    file = Elf(path)
    if file.interpreter:
        sys.exit(f"{path} asks for the interpreter {file.interpreter}")
    if file.needed:
        sys.exit(f"{path} needs the shared libraries {' '.join(file.needed)}")
    # musl gives threads a stack of 128 KiB where the program does not ask for more.
    if path.name == "tessera" and file.stack < 8 << 20:
        sys.exit(f"{path} asks for {file.stack} bytes of stack a thread: link it with -Wl,-z,stack-size=16777216")


GLIBC = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1", "ld-linux-x86-64.so.2"}
MUSL = {"libc.so"}


def require_library(path, allowed, newest=None):
    """Exits where the shared library needs others than allowed, or a newer glibc than `newest`, (2, 17)."""
    file = Elf(path)
    if other := set(file.needed) - allowed:
        sys.exit(f"{path} needs the shared libraries {' '.join(sorted(other))}")
    for version in file.versions:
        found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if found is None or newest is None or tuple(map(int, found.groups())) > newest:
            sys.exit(f"{path} needs {version}")
