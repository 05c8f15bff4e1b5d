"""HDF5 files for differential_test.py: what h5py writes, changed byte by byte and structure by structure, and what h5py reads from it."""
import io, random, struct, zlib

import h5py
import numpy as np

from differential_oracle import MOST_ELEMENTS, TooLarge, real

SIGNATURES = [b"\x89HDF", b"TREE", b"SNOD", b"HEAP", b"GCOL", b"OHDR", b"OCHK", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF", b"BTIN", b"EAHD",
              b"EAIB", b"EADB", b"FAHD", b"FADB"]


def rotate(x, k):
    return (x << k | x >> (32 - k)) & 0xffffffff


def lookup3(data):
    """Jenkins' hash, the checksum of newer structures."""
    a = b = c = (0xdeadbeef + len(data)) & 0xffffffff
    at = 0
    while len(data) - at > 12:
        x, y, z = struct.unpack_from("<III", data, at)
        a, b, c = (a + x) & 0xffffffff, (b + y) & 0xffffffff, (c + z) & 0xffffffff
        for shift_a, shift_b, shift_c in ((4, 6, 8), (16, 19, 4)):
            a = ((a - c) & 0xffffffff) ^ rotate(c, shift_a)
            c = (c + b) & 0xffffffff
            b = ((b - a) & 0xffffffff) ^ rotate(a, shift_b)
            a = (a + c) & 0xffffffff
            c = ((c - b) & 0xffffffff) ^ rotate(b, shift_c)
            b = (b + a) & 0xffffffff
        at += 12
    rest = data[at:]
    if not rest:
        return c
    x, y, z = struct.unpack("<III", rest + bytes(12 - len(rest)))
    a, b, c = (a + x) & 0xffffffff, (b + y) & 0xffffffff, (c + z) & 0xffffffff
    for first, second, shift in (("c", "b", 14), ("a", "c", 11), ("b", "a", 25), ("c", "b", 16), ("a", "c", 4), ("b", "a", 14), ("c", "b", 24)):
        v = {"a": a, "b": b, "c": c}
        v[first] = ((v[first] ^ v[second]) - rotate(v[second], shift)) & 0xffffffff
        a, b, c = v["a"], v["b"], v["c"]
    return c


def summed(data):
    """(begin, end) of what each checksum of the file covers, in old files none: object headers and superblocks."""
    out = []
    if data[8:9] in (b"\2", b"\3"):
        out.append((0, 44))
    at = data.find(b"OHDR")
    while at >= 0:
        flags = data[at + 5]
        head = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        out.append((at, head + width + int.from_bytes(data[head:head + width], "little")))
        at = data.find(b"OHDR", at + 4)
    return out


def write(f, r):
    base = np.arange(60, dtype=np.float32).reshape(10, 6)
    f["a/w"] = base
    f["a/b"] = np.arange(5, dtype=">i2")
    f["a/h"] = np.linspace(0, 1, 7).astype(np.float16)
    f["s"] = 2.5
    f["flags"] = np.array([True, False, True])
    f["z"] = np.array([1 + 2j, 3 - 1j], dtype=np.complex64)
    f["a"].attrs["n"] = 3
    f["a"].attrs["lr"] = 0.5
    f["a"].attrs["name"] = "sgd"
    f["a"].attrs["fixed"] = np.bytes_(b"abc")
    f["a"].attrs["betas"] = [0.9, 0.95]
    f["a"].attrs["names"] = ["x", "yy"]
    f["a/w"].attrs["flag"] = True
    f["a/w"].attrs["c"] = 1 + 2j
    f.attrs["step"] = np.int32(7)
    f.attrs["grid"] = np.arange(4, dtype=np.uint8).reshape(2, 2)
    f.create_dataset("c/plain", data=base, chunks=(4, 4))
    f.create_dataset("c/coded", data=base, chunks=(3, 6), compression="gzip", shuffle=True)
    f.create_dataset("c/summed", data=base.astype(np.int64), chunks=(5, 3), fletcher32=True)
    f.create_dataset("c/lzf", data=np.repeat(base, 8, axis=0), chunks=(40, 6), compression="lzf")
    grows = f.create_dataset("c/grows", shape=(6, 4), maxshape=(None, 4), chunks=(2, 2), dtype=np.int32, fillvalue=9)
    grows[1:3, :2] = 5
    both = f.create_dataset("c/both", shape=(5, 5), maxshape=(None, None), chunks=(2, 2), dtype=np.uint16)
    both[:] = 3
    f.create_dataset("c/never", shape=(3, 2), dtype=np.float64, fillvalue=1.5)
    f["text"] = "hello"
    f["u"] = np.array([1, 2**63], dtype=np.uint64)
    f["again"] = f["s"]
    f["soft"] = h5py.SoftLink("/a/w")
    f["e"] = np.zeros((0, 3), np.float32)
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(f.id, b"small", h5py.h5t.NATIVE_INT32, space, compact).write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(4, dtype=np.int32))


def virtual(f):
    f["one"] = np.arange(4, dtype=np.int32)
    f["two"] = np.arange(4, 8, dtype=np.int32)
    layout = h5py.VirtualLayout(shape=(3, 4), dtype=np.int32)
    for i, source in enumerate(("one", "two")):
        layout[i] = h5py.VirtualSource(".", source, shape=(4,))
    f.create_virtual_dataset("all", layout, fillvalue=-1)


class Hdf5Mutations:
    """Files of few objects, so that a change falls on something that is read."""

    def __init__(self):
        whole = self.file(lambda f: write(f, None), "earliest")
        names = ["a/w", "a/b", "a/h", "s", "flags", "z", "c/plain", "c/coded", "c/summed", "c/lzf", "c/grows", "c/both", "c/never", "u", "text",
                 "small", "a", "c"]
        self.files = []
        for low in ("earliest", "v108", "v110"):
            for group in (names[:3], names[3:6], names[6:8], names[8:10], names[10:11], names[11:12], names[12:15], names[15:16], names[16:17],
                          names[17:]):
                self.files.append(self.file(lambda f: self.copy(whole, f, group), low))
            self.files.append(self.file(virtual, low))
        self.files.append(whole)

    @staticmethod
    def file(fill, low):
        out = io.BytesIO()
        with h5py.File(out, "w", libver=low if low == "earliest" else (low, "v110")) as f:
            fill(f)
        return out.getvalue()

    @staticmethod
    def copy(whole, f, names):
        with h5py.File(io.BytesIO(whole)) as source:
            for name in names:
                source.copy(name, f, name.replace("/", "_"))
            f.attrs["step"] = np.int32(7)

    def make(self, r):
        data = bytearray(r.choice(self.files))
        places = summed(data)
        for _ in range(r.choice([1, 1, 1, 1, 2, 3])):
            self.change(data, r)
        if r.random() < 0.95:
            for begin, end in places:
                if end + 4 <= len(data):
                    data[end:end + 4] = struct.pack("<I", lookup3(bytes(data[begin:end])))
        return bytes(data)

    def place(self, data, r):
        """Of a byte: most often behind a signature, or in what no signature starts (old object headers), and not zero."""
        how = r.random()
        if how < 0.4:
            found = [at for s in SIGNATURES for at in [data.find(s)] if at >= 0]
            if found:
                return min(len(data) - 1, r.choice(found) + r.randrange(96))
        for _ in range(50):
            at = r.randrange(len(data))
            if how > 0.9 or data[at]:
                return at
        return at

    def change(self, data, r):
        if not data:
            return
        at, how = self.place(data, r), r.randrange(10)
        if how < 3:
            data[at] = r.choice([0, 1, 2, 3, 4, 8, 16, 0x7f, 0xff, r.randrange(256)])
        elif how < 6:
            data[at] ^= 1 << r.randrange(8)
        elif how == 6:
            data[at] = (data[at] + r.choice([1, -1, 8, -8])) % 256
        elif how == 7:
            at &= ~7
            data[at:at + 8] = struct.pack("<Q", r.choice([0, 1, 8, 96, 2**64 - 1, 2**32, r.randrange(len(data)), r.randrange(len(data)) & ~7]))
        elif how == 8:
            source, size = self.place(data, r) & ~7, r.choice([4, 8, 16, 24, 40])
            at &= ~7
            if at + size <= len(data) and source + size <= len(data):
                data[at:at + size] = data[source:source + size]
        else:
            cut = r.random()
            if cut < 0.3:
                del data[r.randrange(len(data)):]
            elif cut < 0.6:
                data += bytes(r.randrange(1, 64))
            else:
                data[at:at + 1] = b""


def quoted(text):
    """A name in plain ASCII, whatever bytes it has."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 0x20 < b < 0x7f and b != 0x25 else f"%{b:02x}" for b in data)


def described(v):
    """A value of an attribute, or of a dataset of text; None for what has no form among values."""
    if isinstance(v, np.ndarray):
        v = v.tolist() if v.dtype.kind in "biufcSO" else None
    elif isinstance(v, np.generic):
        v = v.item() if v.dtype.kind in "biufcS" else None
    if isinstance(v, list):
        items = [described(i) for i in v]
        return None if None in items else "[" + ",".join(items) + "]"
    if isinstance(v, (bool, np.bool_)):
        return "true" if v else "false"
    if isinstance(v, int):
        return f"i{v}"
    if isinstance(v, (float, np.longdouble)):
        return "f" + real(float(v))
    if isinstance(v, complex):
        return "c" + real(v.real) + real(v.imag)
    if isinstance(v, str):
        v = v.encode("utf-8", "surrogateescape")
    if isinstance(v, bytes):
        return f"s{len(v)}:{v.hex()}"
    return None


def element_type(dtype):
    if dtype.kind == "b":
        return "bool"
    return dtype.newbyteorder("=").name


def dataset(d):
    if d.size is None or d.size > MOST_ELEMENTS or d.dtype.itemsize > 1 << 12:
        raise TooLarge
    if h5py.check_string_dtype(d.dtype) is not None:
        return described(d[()]) or "object"
    if d.dtype.kind not in "biufc":
        return "object"
    data = d[()]
    data = np.asarray(data).astype(d.dtype.newbyteorder("<"), copy=False)
    return f"T<{element_type(d.dtype)} [{','.join(map(str, d.shape))}] {zlib.crc32(np.ascontiguousarray(data).tobytes()):08x}>"


def read_hdf5(data):
    try:
        lines, seen = [], set()
        with h5py.File(h5py.h5f.open_file_image(data)) as f:
            def visit(path, item):
                # H5Ovisit goes by the count of links that an object states of itself.
                address = h5py.h5o.get_info(item.id).addr
                if address in seen:
                    return
                seen.add(address)
                where = path.replace("/", ".") if isinstance(path, str) else path.replace(b"/", b".")
                if isinstance(item, h5py.Dataset):
                    lines.append(f"{quoted(where)} = {dataset(item)}")
                for key in item.attrs:
                    value = described(item.attrs[key])
                    if value is not None:
                        lines.append(f"{quoted(where)}@{quoted(key)} = {value}")
            visit("", f)
            f.visititems(visit)
        return True, "\n".join(sorted(lines))
    except (TooLarge, RecursionError, MemoryError):
        return False, "too large"
    except Exception as e:
        return False, f"{type(e).__name__}: {e}"
