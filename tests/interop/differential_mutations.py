"""Files for differential_test.py: what torch.save and the safetensors library write, changed opcode by opcode, record by record, field
by field, byte by byte. A mutation depends on the random numbers it is given and on nothing else."""
import collections, io, json, pickle, random, struct, zlib

import torch

ARGUMENT = {b"K": 1, b"M": 2, b"J": 4, b"G": 8, b"h": 1, b"j": 4, b"q": 1, b"r": 4, b"\x80": 1, b"\x95": 8}
COUNTED = {b"U": 1, b"T": 4, b"X": 4, b"B": 4, b"C": 1, b"\x8a": 1, b"\x8b": 4, b"\x8c": 1, b"\x8d": 8, b"\x8e": 8, b"\x96": 8}
LINES = {b"c": 2, b"i": 2, b"I": 1, b"L": 1, b"F": 1, b"S": 1, b"V": 1, b"g": 1, b"p": 1, b"P": 1}


def opcodes(pickled, at=0):
    """Opcodes with their arguments up to STOP, as byte strings; where it ends."""
    out = []
    while True:
        code, end = pickled[at:at + 1], at + 1
        if code in ARGUMENT:
            end += ARGUMENT[code]
        elif code in COUNTED:
            width = COUNTED[code]
            end += width + int.from_bytes(pickled[end:end + width], "little")
        elif code in LINES:
            for _ in range(LINES[code]):
                end = pickled.index(b"\n", end) + 1
        out.append(pickled[at:end])
        at = end
        if code == b".":
            return out, at


def text(s):
    data = s.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def integer(n):
    return b"K" + bytes([n]) if 0 <= n < 256 else b"\x8a" + bytes([9]) + n.to_bytes(9, "little", signed=True)


def real(x):
    return b"G" + struct.pack(">d", x)


def name(module, attribute):
    return b"c" + f"{module}\n{attribute}\n".encode()


def get(i):
    return b"h" + bytes([i]) if i < 256 else b"j" + struct.pack("<I", i)


SCALARS = [b"N", b"\x88", b"\x89", *map(integer, (0, 1, 2, 3, 4, 8, 255, 2**53, -1)), *map(real, (
    0.0, -0.0, 1.0, 2.0, 2.0**53, float("nan"), float("inf"), 0.5)), *map(text, ("", "a", "w", "data", "real", "storage", "0", "1", "neg",
    "conj", "cpu", "meta", "latin1", "utf-8", "requires_grad", "_metadata", "\ud800", "é")), b"I01\n", b"I00\n", b"I010\n", b"I1\n", b"I-0\n",
    b"I+1\n", b"L7L\n", b"L007L\n", b"I0x10\n", b"F1.0\n", b"Fnan\n", b"F1e3\n", b"S'a'\n", b"S'\\x41'\n", b'S"b"\n', b"Va\n",
    b"V\\u0041\n", b"V\\\\u0041\n", b"V\\\\\\u0041\n", b"V\\x\n", b"U\x01a", b"C\x01a", b"B\x01\0\0\0a", b"\x8c\x01w",
    b"\x96\x01\0\0\0\0\0\0\0z", b")", b"]", b"}", b"\x8f", b"(\x91"]
NAMES = [name(*n) for n in (
    ("collections", "OrderedDict"), ("UserDict", "OrderedDict"), ("collections", "Counter"), ("_codecs", "encode"),
    ("__builtin__", "set"), ("builtins", "set"),
    ("__builtin__", "bytearray"), ("__builtin__", "complex"), ("builtins", "frozenset"), ("torch", "Size"), ("torch", "Tensor"),
    ("torch", "FloatTensor"), ("torch", "device"), ("torch.nn.parameter", "Parameter"), ("torch", "FloatStorage"), ("torch", "LongStorage"),
    ("torch", "ByteStorage"), ("torch", "IntStorage"), ("torch", "DoubleStorage"), ("torch.storage", "UntypedStorage"),
    ("torch.serialization", "_get_layout"), ("torch", "float32"), ("torch", "int32"), ("torch", "uint16"), ("torch", "complex64"),
    ("torch._utils", "_rebuild_tensor"), ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"), ("torch._utils", "_rebuild_parameter_with_state"), ("torch._utils", "_rebuild_qtensor"),
    ("torch._utils", "_rebuild_sparse_tensor"), ("torch._utils", "_rebuild_meta_tensor_no_storage"),
    ("torch._tensor", "_rebuild_from_type_v2"), ("torch", "per_tensor_affine"), ("torch", "per_channel_affine"))]
PLAIN = [b"(", b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"R", b"b", b"\x81", b"Q", b"0", b"1", b"2", b")", b"]", b"}", b"\x85", b"\x86",
         b"\x87", b"\x8f", b"\x90", b"\x91", b"\x94", b"o"]


class PickleMutator:
    def __init__(self, seeds):
        self.seeds = seeds  # lists of opcodes

    def scalar(self, r):
        return r.choice(SCALARS)

    def any_get(self, ops, r):
        """A use of something that was met before."""
        indices = [int.from_bytes(op[1:], "little") for op in ops if op[:1] in b"qr"]
        return get(r.choice(indices)) if indices else self.scalar(r)

    def tail(self, ops, at, r):
        """Something that changes or uses what is on the stack or in the memo."""
        before = ops[:at]
        g, s = lambda: self.any_get(before, r), lambda: self.scalar(r)
        thing = lambda: g() if r.random() < 0.5 else s()
        return r.choice([
            lambda: [g(), thing(), b"a", b"0"], lambda: [g(), b"(", thing(), thing(), b"e", b"0"],
            lambda: [g(), thing(), thing(), b"s", b"0"], lambda: [g(), b"(", thing(), thing(), thing(), thing(), b"u", b"0"],
            lambda: [thing(), b"b"], lambda: [b"}", thing(), thing(), b"s", b"b"], lambda: [b"(", g(), thing(), thing(), thing(), b"t", b"b"],
            lambda: [g(), g(), b"b", b"0"], lambda: [b"N", b"}", s(), g(), b"s", b"\x86", b"b"],
            lambda: [g(), b"0"], lambda: [s(), thing(), b"s"], lambda: [thing(), b"a"], lambda: [b"0", g()], lambda: [b"0", s()],
            lambda: [b"0", r.choice(NAMES), g(), b"\x85", b"R"], lambda: [b"0", r.choice(NAMES), thing(), thing(), b"\x86", b"R"],
            lambda: [b"0", r.choice(NAMES), b")", r.choice([b"R", b"\x81"])],
            lambda: [b"0", r.choice(NAMES), b"]", thing(), b"a", thing(), b"a", b"\x85", b"R"],
            lambda: [b"0", r.choice(NAMES), b"]", b"(", s(), thing(), b"t", b"a", b"(", s(), thing(), b"t", b"a", b"\x85", b"R"],
            lambda: [b"0", b"}", thing(), s(), b"s", thing(), s(), b"s"], lambda: [b"\x85"], lambda: [b"]", thing(), b"a", b"\x86"],
            lambda: [r.choice(PLAIN)], lambda: [thing()]])()

    def change(self, ops, r):
        at = r.randrange(1, len(ops))
        how = r.random()
        if how < 0.40:
            return ops[:at] + self.tail(ops, at, r) + ops[at:]
        if how < 0.48:
            end = min(len(ops), at + r.randrange(1, 12))
            to = r.randrange(1, len(ops))
            return ops[:to] + ops[at:end] + ops[to:]
        if how < 0.54:
            return ops[:at] + ops[at + r.randrange(1, 4):]
        if how < 0.60:
            to = r.randrange(1, len(ops))
            ops = list(ops)
            ops[at], ops[to] = ops[to], ops[at]
            return ops
        if how < 0.64:
            other = r.choice(self.seeds)
            begin = r.randrange(1, len(other))
            return ops[:at] + other[begin:begin + r.randrange(1, 10)] + ops[at:]
        return self.replace(ops, r)

    def replace(self, ops, r):
        """One argument: a number, a text, a name, a place in the memo."""
        kinds = r.choice([b"KMJ\x8aGN\x88\x89", b"X", b"c", b"hj", b"qr", b"tR\x81\x85\x86\x87b", b")]}"])
        places = [i for i, op in enumerate(ops) if op[:1] in kinds and i]
        if not places:
            return ops
        at = r.choice(places)
        ops = list(ops)
        code = ops[at][:1]
        if code == b"c":
            ops[at] = r.choice(NAMES)
        elif code in b"hj":
            ops[at] = self.any_get(ops[:at], r)
        elif code in b"qr":
            ops[at] = b"q" + bytes([r.randrange(256)])
        elif code in b"tR\x81\x85\x86\x87b":
            ops[at] = r.choice(PLAIN)
        elif code == b"K" and r.random() < 0.5:
            ops[at] = integer(r.randrange(9))
        else:
            ops[at] = self.scalar(r)
        return ops

    def mutate(self, ops, r):
        for _ in range(1 if r.random() < 0.6 else r.randrange(2, 5)):
            ops = self.change(ops, r)
            if len(ops) < 3:
                break
        if ops[-1:] != [b"."]:
            ops = ops + [b"."]
        return ops if r.random() < 0.1 else [op for op in ops if op[:1] != b"\x95"]  # lengths of frames would be wrong


def zip_of(records, r=None):
    """Stored records, as torch writes them. With `r`, a field of a header now and then says something else."""
    out, directory = b"", b""
    lie = lambda fields: list(fields)
    if r is not None:
        victim = r.randrange(2 * len(records))
        count = [0]

        def lie(fields):
            fields, count[0] = list(fields), count[0] + 1
            if count[0] - 1 == victim:
                fields[r.randrange(len(fields))] = r.choice([0, 1, 2, 8, 64, 0xffff, r.randrange(4096)])
            return fields
    for path, data in records:
        crc, offset = zlib.crc32(data), len(out)
        local = lie((20, 0, 0, 0, 0, crc, len(data), len(data), len(path), 0))
        out += b"PK\3\4" + struct.pack("<HHHHHIIIHH", *limit(local, "HHHHHIIIHH")) + path + data
        central = lie((20, 20, 0, 0, 0, 0, crc, len(data), len(data), len(path), 0, 0, 0, 0, 0, offset))
        directory += b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", *limit(central, "HHHHHHIIIHHHHHII")) + path
    end = struct.pack("<HHHHIIH", 0, 0, len(records), len(records), len(directory), len(out), 0)
    return out + directory + b"PK\5\6" + end


def limit(fields, kinds):
    return [f & (0xffff if k == "H" else 0xffffffff) for f, k in zip(fields, kinds)]


def records_of(data):
    import zipfile
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        return [(i.filename.encode(), z.read(i)) for i in z.infolist()]


def objects():
    t = torch.arange(4, dtype=torch.float32)
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    ordered = collections.OrderedDict(w=t, v=base[1:, ::2])
    ordered._metadata = {"": {"version": 1}}
    with_note = torch.nn.Parameter(torch.ones(2))
    with_note.note = "x"
    noted = torch.ones(3)  # goes through _rebuild_from_type_v2
    noted.note = "y"
    shared = [1, 2]
    yield {"w": t, "b": base, "view": base.t(), "n": 1}
    yield ordered
    yield {"model": ordered, "optim": {"state": {0: {"step": torch.tensor(3.0), "m": t.clone()}}, "param_groups": [{"lr": 0.1,
           "betas": (0.9, 0.95), "params": [0, 1]}]}, "flags": {True: "a", 0: "b", 2.5: "c", (1, 2): None}}
    yield {"p": torch.nn.Parameter(base.clone()), "q": with_note, "r": noted, "i": torch.arange(3), "h": torch.ones(2, dtype=torch.bfloat16)}
    yield {"conj": torch.tensor([1 + 2j, 3 - 1j]).conj(), "neg": torch._neg_view(t.clone()), "u": torch.tensor([1, 2, 3], dtype=torch.uint16)}
    yield {"coo": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr(), "size": torch.Size([2, 3])}
    yield {"q": torch.quantize_per_tensor(t, 0.5, 1, torch.quint8), "c": torch.quantize_per_channel(
        base, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), torch.tensor([0, 1, 2]), 0, torch.qint8)}
    yield {"set": {1, 2}, "bytes": b"\xff1", "ba": bytearray(b"xy"), "complex": 1 + 2j, "list": [shared, shared], "dtype": torch.float16,
           "big": 2**70, "none": None, "t": (t, [t]), "counter": collections.Counter("abca"), "device": torch.device("cpu")}
    yield [t, base, {"x": [t]}, (1, "a", 2.0)]
    yield t


class TorchMutations:
    def __init__(self, of=None):
        self.archives, self.streams, self.files = [], [], []
        pickles = []
        for obj in objects() if of is None else of:
            for protocol in (2, 4):
                f = io.BytesIO()
                torch.save(obj, f, pickle_protocol=protocol)
                self.files.append(f.getvalue())
                records = records_of(f.getvalue())
                ops = opcodes(dict(records)[b"archive/data.pkl"])[0]
                self.archives.append((records, ops))
                pickles.append(ops)
            f = io.BytesIO()
            torch.save(obj, f, _use_new_zipfile_serialization=False)
            self.files.append(f.getvalue())
            parts, at = [], 0
            for _ in range(5):
                ops, at = opcodes(f.getvalue(), at)
                parts.append(ops)
            self.streams.append((parts, f.getvalue()[at:]))
        self.pickles = PickleMutator(pickles)

    def make(self, r):
        how = r.random()
        if how < 0.62:
            return self.archive(r)
        if how < 0.78:
            return self.stream(r)
        if how < 0.92:
            return self.records(r)
        return self.bytes(r)

    def archive(self, r):
        records, ops = r.choice(self.archives)
        mutated = b"".join(self.pickles.mutate(ops, r))
        return zip_of([(n, mutated if n.endswith(b"/data.pkl") else d) for n, d in records])

    def stream(self, r):
        parts, data = r.choice(self.streams)
        parts = list(parts)
        at = 3 if r.random() < 0.9 else 4
        if r.random() < 0.3:
            parts[3] = self.views(parts[3], r)
        if r.random() < 0.7:
            parts[at] = self.pickles.mutate(parts[at], r)
        return b"".join(op for part in parts for op in part) + data

    def views(self, ops, r):
        """Storages become parts of themselves: (key of the part, offset, number of elements) for the None in their ids."""
        out = []
        for i, op in enumerate(ops):
            if op == b"N" and b"Q" in ops[i + 1:i + 4] and r.random() < 0.5:
                key = r.choice([text("v"), text("w"), self.pickles.any_get(ops[:i], r)])
                out += [b"(", key, integer(r.choice([0, 0, 1, 2])), integer(r.choice([0, 2, 3, 4, 12])), b"t"]
            else:
                out.append(op)
        return out

    def records(self, r):
        records, ops = r.choice(self.archives)
        records = list(records)
        if r.random() < 0.3:
            changed = b"".join(self.pickles.mutate(ops, r))
            records = [(n, changed if n.endswith(b"/data.pkl") else d) for n, d in records]
        at = r.randrange(len(records))
        path, data = records[at]
        how = r.randrange(9)
        if how == 0:
            records[at] = (path.swapcase() if r.random() < 0.5 else path.upper(), data)
        elif how == 1:
            records.insert(r.randrange(len(records) + 1), (path.upper(), r.choice(records)[1]))
        elif how == 2:
            records.insert(r.randrange(len(records) + 1), records[at])
        elif how == 3:
            del records[at]
        elif how == 4:
            other = r.randrange(len(records))
            records[at], records[other] = (path, records[other][1]), (records[other][0], data)
        elif how == 5:
            r.shuffle(records)
        elif how == 6:
            return zip_of(records, r)
        elif how == 7:
            records = [(n, r.choice([b"big", b"little", b"Big", b"big\n", b""]) if n.lower().endswith(b"byteorder") else d) for n, d in records]
        else:
            return self.two_ends(zip_of(records), zip_of(r.choice(self.archives)[0]), r)
        return zip_of(records) if records else b""

    def two_ends(self, one, other, r):
        """Another archive, or its end record, in the comment of the first, whose length is right or wrong."""
        comment = r.choice([other, other[-22:], b"PK\5\6" + bytes(18), bytes(r.randrange(40))])
        length = r.choice([len(comment), 0, r.randrange(60), max(0, len(comment) - 22)])
        return one[:-2] + struct.pack("<H", length & 0xffff) + comment

    def bytes(self, r):
        data = bytearray(r.choice(self.files))
        for _ in range(r.randrange(1, 4)):
            at = r.randrange(len(data)) if r.random() < 0.5 else max(0, len(data) - 1 - r.randrange(600))
            how = r.randrange(3)
            if how == 0:
                data[at] = r.randrange(256)
            elif how == 1:
                data[at] ^= 1 << r.randrange(8)
            else:
                data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 4)))
        return bytes(data)


class DcpMutations:
    """The pickle of .metadata, of plain, sharded and nested states."""

    def __init__(self):
        from torch.distributed.checkpoint import filesystem, metadata as md
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata as Chunk
        size = torch.Size
        properties = md.TensorProperties(dtype=torch.float32)
        halves = [Chunk(offsets=size([i, 0]), sizes=size([2, 3])) for i in (0, 2)]
        entries = {"w": md.TensorStorageMetadata(properties=properties, size=size([4, 3]), chunks=halves),
                   "b": md.TensorStorageMetadata(properties=md.TensorProperties(dtype=torch.bfloat16), size=size([3]),
                                                 chunks=[Chunk(offsets=size([0]), sizes=size([3]))]),
                   "step": md.BytesStorageMetadata()}
        storage = {md.MetadataIndex("w", size([0, 0]), 0): filesystem._StorageInfo("__0_0.distcp", 0, 100),
                   md.MetadataIndex("w", size([2, 0]), 1): filesystem._StorageInfo("__1_0.distcp", 0, 100),
                   md.MetadataIndex("b", size([0]), 0): filesystem._StorageInfo("__0_0.distcp", 100, 50),
                   md.MetadataIndex("step", None, None): filesystem._StorageInfo("__0_0.distcp", 150, 20)}
        paths = {"w": ("w",), "b": ("b",), "step": ("step",)}
        seeds = [md.Metadata(entries, paths, storage), md.Metadata({"w": entries["w"]}, None, dict(list(storage.items())[:2]))]
        # Members of enums are written by getattr, which the oracle does not call: their places stay as they are.
        self.seeds = [opcodes(pickle.dumps(seed, protocol))[0] for seed in seeds for protocol in (2, 4)]
        self.pickles = PickleMutator(self.seeds)
        self.names = [name(*n) for n in (
            ("torch.distributed.checkpoint.metadata", "MetadataIndex"), ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
            ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"), ("torch.distributed.checkpoint.filesystem", "_StorageInfo"))]

    def make(self, r):
        ops = self.pickles.mutate(r.choice(self.seeds), r)
        if r.random() < 0.2:
            places = [i for i, op in enumerate(ops) if op[:1] == b"c"]
            if places:
                ops = list(ops)
                ops[r.choice(places)] = r.choice(self.names)
        return b"".join(ops)


class SafetensorsMutations:
    """The header's text is changed token by token; its length follows, mostly."""
    WORDS = ["-0", "0", "1", "4", "16", "1.0", "1e1", "-1", "00", "+1", "null", "true", '""', '"a"', '"F32"', '"I64"', '"BF16"', '"F4"', "[]",
             "{}", "[0,4]", ",", ":", "{", "}", "[", "]", "\0", " ", "\n", "\t", '"__metadata__"', '"x"', "\ufeff", '"\\u0000"', '"\\ud800"',
             '"\\u00e9"', "18446744073709551615", "9223372036854775808", '"dtype"', '"shape"', '"data_offsets"', '"more"', "\x7f", '"\x01"']

    def __init__(self):
        self.seeds = []
        for tensors in ({"a": ("F32", [2, 2], 16)}, {"a": ("F32", [1], 4), "b.c": ("I64", [1, 2], 16), "é": ("BF16", [3], 6)},
                        {"e": ("F32", [0], 0), "s": ("U8", [], 1)}, {}):
            header, at = {"__metadata__": {"format": "pt"}} if len(tensors) != 1 else {}, 0
            for key, (dtype, shape, size) in tensors.items():
                header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
                at += size
            self.seeds.append((self.tokens(json.dumps(header, ensure_ascii=False, separators=(",", ":"))), bytes(range(at))))

    @staticmethod
    def tokens(line):
        import re
        return re.findall(r'"(?:[^"\\]|\\.)*"|-?[0-9.eE+]+|true|false|null|.', line)

    def make(self, r):
        tokens, data = r.choice(self.seeds)
        tokens = list(tokens)
        for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
            at, how = r.randrange(len(tokens)), r.randrange(6)
            if how == 0:
                tokens[at] = r.choice(self.WORDS)
            elif how == 1:
                tokens.insert(at, r.choice(self.WORDS))
            elif how == 2 and len(tokens) > 1:
                del tokens[at]
            elif how == 3:
                tokens.append(r.choice(self.WORDS))
            elif how == 4:
                other = r.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            else:
                numbers = [i for i, t in enumerate(tokens) if t.isdigit()]
                if numbers:
                    tokens[r.choice(numbers)] = r.choice(["-0", "0", "1", "2", "4", "8", "16", "1.0", "1e0", "01"])
        head = "".join(tokens).encode("utf-8", "surrogatepass")
        if r.random() < 0.1:
            head += r.choice([b"\0", b" \0", b"\0\0\0", b"  ", b"\n", b"\xff"])
        length = len(head) + (r.choice([-1, 1, 2]) if r.random() < 0.05 else 0)
        if r.random() < 0.1:
            data = r.choice([data + b"\0", data[:-1], data + data])
        return struct.pack("<Q", max(0, length)) + head + data


class Mutations:
    MAKERS = {}

    def __init__(self, kind):
        if kind not in self.MAKERS:
            self.MAKERS[kind] = self.maker(kind)()
        self.make = self.MAKERS[kind].make

    @staticmethod
    def maker(kind):
        if kind == "folder":
            from differential_dcp import FolderMutations
            return FolderMutations
        if kind == "hdf5":
            from differential_hdf5 import Hdf5Mutations
            return Hdf5Mutations
        return {"torch": TorchMutations, "dcp": DcpMutations, "safetensors": SafetensorsMutations}[kind]
