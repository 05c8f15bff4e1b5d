"""Folders of torch.distributed.checkpoint for differential_test.py: .metadata and the items it names, changed together and apart, and
what PyTorch's loader makes of them."""
import contextlib, copy, io, logging, os, pickle, random, struct

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import default_planner, filesystem, metadata as md
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from differential_mutations import PickleMutator, TorchMutations, name, opcodes
from differential_oracle import Description, GuardedPickle, MetadataUnpickler, TooLarge

logging.disable(logging.CRITICAL)  # DCP logs each failure at length
NAMES = [name("torch.distributed.checkpoint." + module, attribute) for module, attribute in (
    ("metadata", "MetadataIndex"), ("metadata", "ChunkStorageMetadata"), ("metadata", "BytesStorageMetadata"),
    ("metadata", "TensorStorageMetadata"), ("filesystem", "_StorageInfo"))]
NUMBERS = [0, 1, 2, 3, 4, 6, 8, 64, 2**31, 2**53, -1, True, 2.0]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64]


def pack(files):
    """The files of a folder as one string of bytes."""
    return b"".join(struct.pack("<I", len(part)) + part for path, data in files.items() for part in (path.encode(), data))


def unpack(data):
    parts, at = [], 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0]
        parts.append(data[at + 4:at + 4 + size])
        at += 4 + size
    return {path.decode(): content for path, content in zip(parts[::2], parts[1::2])}


class Item:
    """What one entry of storage_data names: an object in a file."""

    def __init__(self, fqn, obj, file, offset=None, index=None):
        self.index = md.MetadataIndex(fqn, None if offset is None else torch.Size(offset), index)
        self.file = file
        self.mutations = TorchMutations([obj])
        self.data = self.mutations.files[0]


class Seed:
    def __init__(self, tensors, values, paths):
        """tensors: {fqn: (tensor, [boxes as (offset, sizes)])}; pieces go to files in turn."""
        self.entries, self.items, self.paths = {}, [], paths
        for fqn, (whole, boxes) in tensors.items():
            chunks = []
            for i, (offset, sizes) in enumerate(boxes):
                part = whole
                for dim, (begin, size) in enumerate(zip(offset, sizes)):
                    part = part.narrow(dim, begin, size)
                chunks.append(md.ChunkStorageMetadata(offsets=torch.Size(offset), sizes=torch.Size(sizes)))
                part = part if part.is_conj() or not part.is_contiguous() and i % 2 else part.clone()
                self.items.append(Item(fqn, part, f"__{i % 2}_0.distcp", offset, i if len(boxes) > 1 else None))
            self.entries[fqn] = md.TensorStorageMetadata(properties=md.TensorProperties(dtype=whole.dtype), size=whole.size(), chunks=chunks)
        for fqn, value in values.items():
            self.entries[fqn] = md.BytesStorageMetadata()
            self.items.append(Item(fqn, value, "__0_0.distcp"))


def seeds():
    t = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    rows, grid = [((0, 0), (2, 3)), ((2, 0), (2, 3))], [((i, j), (2, 2)) for i in (0, 2) for j in (0, 2)]
    nested = {"model.w": ("model", "w"), "model.b": ("model", "b"), "optim.groups.0.lr": ("optim", "groups", 0, "lr"),
              "optim.groups.0.betas": ("optim", "groups", 0, "betas"), "step": ("step",)}
    yield Seed({"model.w": (t, rows), "model.b": (torch.ones(3, dtype=torch.bfloat16), [((0,), (3,))])},
               {"optim.groups.0.lr": 0.5, "optim.groups.0.betas": (0.9, 0.95), "step": 7}, nested)
    yield Seed({"g": (torch.arange(16).reshape(4, 4), grid), "s": (torch.tensor(2.5), [((), ())]), "e": (torch.ones(0, 3), [((0, 0), (0, 3))])},
               {"v": {"a": [1, None], "t": torch.arange(3)}, "list": [torch.ones(2), "x"], "n": None}, None)
    yield Seed({"x": (t.t(), [((0, 0), (1, 4)), ((1, 0), (2, 4))]), "c": (torch.tensor([1 + 2j, 3 - 1j]).conj(), [((0,), (2,))]),
                "h": (torch.tensor([True, False]), [((0,), (1,)), ((1,), (1,)), ((2,), (0,))])},
               {"y": "text", "z": b"\xff"}, {"x": ("x",), "c": ("c",), "h": ("h",), "y": ("y",), "z": ("z",)})


class Draft:
    """A folder as it will be written: what is changed before that, and what it becomes."""

    def __init__(self, seed, r):
        self.r, self.seed = r, seed
        self.entries, self.paths = copy.deepcopy(seed.entries), copy.deepcopy(seed.paths)
        self.items = [(item.index, item.file, item.data) for item in seed.items]
        self.places = {}  # of items, where they are not what they should be

    def files(self):
        files, storage = {}, {}
        for i, (index, file, data) in enumerate(self.items):
            before = files.get(file, b"")
            place = [file, len(before), len(data)]
            files[file] = before + data
            for field, change in self.places.get(i, []):
                place[field] = change if field == 0 else place[field] + change
            storage[index] = filesystem._StorageInfo(*place)
        return files, md.Metadata(self.entries, self.paths, storage)

    def change(self):
        r = self.r
        kind = r.choice([self.swap_items, self.swap_indices, self.place, self.place, self.chunk, self.chunk, self.size, self.dtype, self.path,
                         self.index, self.drop, self.twice, self.order])
        kind()

    def some(self):
        return self.r.randrange(len(self.items))

    def swap_items(self):
        a, b = self.some(), self.some()
        x, y = self.items[a], self.items[b]
        self.items[a], self.items[b] = (x[0], x[1], y[2]), (y[0], y[1], x[2])

    def swap_indices(self):
        a, b = self.some(), self.some()
        x, y = self.items[a], self.items[b]
        self.items[a], self.items[b] = (y[0], x[1], x[2]), (x[0], y[1], y[2])

    def place(self):
        r = self.r
        how = r.randrange(3)
        change = (0, r.choice(["__0_0.distcp", "__1_0.distcp", "./__0_0.distcp", ".metadata", "__2_0.distcp", ""])) if how == 0 else \
            (how, r.choice([1, -1, 64, -64, 8, 1000, -1000, len(self.items[0][2]), -len(self.items[0][2])]))
        self.places.setdefault(self.some(), []).append(change)

    def tensor(self):
        return self.entries[self.r.choice([k for k, v in self.entries.items() if isinstance(v, md.TensorStorageMetadata)])]

    def numbers(self, size):
        numbers = list(size)
        how = self.r.randrange(4)
        if how == 0 or not numbers:
            numbers.append(self.r.choice(NUMBERS))
        elif how == 1:
            numbers.pop()
        else:
            numbers[self.r.randrange(len(numbers))] = self.r.choice(NUMBERS)
        try:
            return torch.Size(numbers) if self.r.random() < 0.8 else self.r.choice([tuple, list])(numbers)
        except TypeError:
            return tuple(numbers)

    def chunk(self):
        r, chunks = self.r, self.tensor().chunks
        if not chunks:
            return
        at, how = r.randrange(len(chunks)), r.randrange(6)
        chunk = chunks[at]
        if how == 0:
            chunk.offsets = self.numbers(chunk.offsets)
        elif how == 1:
            chunk.sizes = self.numbers(chunk.sizes)
        elif how == 2:
            del chunks[at]
        elif how == 3:
            chunks.append(copy.deepcopy(chunk))
        elif how == 4:
            r.shuffle(chunks)
        else:
            other = r.choice(chunks)
            chunk.offsets, other.offsets = other.offsets, chunk.offsets

    def size(self):
        entry = self.tensor()
        entry.size = self.numbers(entry.size)

    def dtype(self):
        self.tensor().properties = md.TensorProperties(dtype=self.r.choice(DTYPES), requires_grad=self.r.random() < 0.5)

    def path(self):
        if not self.paths:
            self.paths = {fqn: (fqn,) for fqn in self.entries} if self.paths is None else None
            return
        fqn = self.r.choice(list(self.paths))
        path = list(self.paths[fqn])
        how = self.r.randrange(5)
        if how == 0:
            del self.paths[fqn]
        elif how == 1:
            self.paths[fqn] = self.r.choice(list(self.paths.values()))
        elif how == 2:
            path[self.r.randrange(len(path))] = self.r.choice([0, 1, 2, -1, "w", "", "a.b", "0", True])
            self.paths[fqn] = tuple(path)
        elif how == 3:
            self.paths[fqn] = (*path, self.r.choice([0, 1, "w"]))
        else:
            self.paths[fqn] = tuple(fqn.split("."))

    def index(self):
        i = self.some()
        index, file, data = self.items[i]
        how = self.r.randrange(4)
        offset = index.offset
        if how == 0:
            offset = None if offset is not None else torch.Size((0,))
        elif how == 1 and offset is not None:
            offset = self.numbers(offset)
        fqn = self.r.choice(list(self.entries)) if how == 2 else index.fqn
        self.items[i] = (md.MetadataIndex(fqn, offset, self.r.choice([None, 0, 1, 2]) if how == 3 else index.index), file, data)

    def drop(self):
        if self.r.random() < 0.5:
            del self.entries[self.r.choice(list(self.entries))]
            if not any(isinstance(v, md.TensorStorageMetadata) for v in self.entries.values()):
                self.entries = copy.deepcopy(self.seed.entries)
        elif len(self.items) > 1:
            del self.items[self.some()]

    def twice(self):
        index, file, data = self.items[self.some()]
        self.items.append((index, file, self.r.choice(self.items)[2]))

    def order(self):
        self.r.shuffle(self.items)
        entries = list(self.entries.items())
        self.r.shuffle(entries)
        self.entries = dict(entries)


class FolderMutations:
    def __init__(self):
        self.seeds = list(seeds())
        plain = [Draft(seed, random).files()[1] for seed in self.seeds]
        self.pickles = PickleMutator([opcodes(pickle.dumps(metadata, protocol))[0] for metadata in plain for protocol in (2, 4)])

    def make(self, r):
        seed = r.choice(self.seeds)
        draft, how = Draft(seed, r), r.random()
        if how < 0.35:
            for _ in range(r.choice([1, 1, 1, 2, 3])):
                draft.change()
        elif how < 0.65:
            i = r.randrange(len(seed.items))
            draft.items[i] = (*draft.items[i][:2], seed.items[i].mutations.make(r))
        files, metadata = draft.files()
        try:
            pickled = pickle.dumps(metadata, r.choice([2, 4]))
        except Exception:
            pickled = b""
        if 0.65 <= how < 0.85:
            ops = self.pickles.mutate(opcodes(pickled)[0], r)
            places = [i for i, op in enumerate(ops) if op[:1] == b"c"]
            if places and r.random() < 0.2:
                ops = list(ops)
                ops[r.choice(places)] = r.choice(NAMES)
            pickled = b"".join(ops)
        files[".metadata"] = pickled
        if how >= 0.85 or r.random() < 0.05:
            self.bytes(files, r)
        return pack(files)

    def bytes(self, files, r):
        path = r.choice(list(files))
        data = bytearray(files[path])
        how = r.randrange(7)
        if how == 0:
            files.pop(path)
        elif how == 1:
            files[path] = bytes(data[:r.randrange(len(data) + 1)])
        elif how == 2:
            files[path] = bytes(data) + bytes(r.randrange(256) for _ in range(r.randrange(1, 9)))
        elif how == 3:
            other = r.choice(list(files))
            files[path], files[other] = files[other], files[path]
        elif how == 4:
            files[r.choice(["__2_0.distcp", "__0_1.distcp", "__0.metadata", ".metadata.tmp", "note.txt"])] = bytes(data)
        elif data:
            for _ in range(r.randrange(1, 4)):
                data[r.randrange(len(data))] = r.randrange(256)
            files[path] = bytes(data)


class MemoryFiles(filesystem.FileSystem):
    """The folder "/c", in memory."""

    def __init__(self, files):
        super().__init__()
        self.contents = files

    def create_stream(self, path, mode):
        where = os.path.relpath(os.path.normpath(path), "/c")
        if where not in self.contents:
            raise FileNotFoundError(path)
        return contextlib.nullcontext(io.BytesIO(self.contents[where]))


class Reader(dcp.FileSystemReader):
    def __init__(self, files):
        super().__init__("/c")
        self.fs = MemoryFiles(files)

    def read_metadata(self, *_, **__):
        with self.fs.create_stream("/c/.metadata", "rb") as stream:
            self.metadata = MetadataUnpickler(stream).load()
        for entry in self.metadata.state_dict_metadata.values():
            if isinstance(entry, md.TensorStorageMetadata) and torch.Size(entry.size).numel() > 1 << 16:
                raise TooLarge
        if getattr(self.metadata, "storage_meta", None) is None:
            self.metadata.storage_meta = md.StorageMeta()
        return self.metadata


class NamedPlanner(default_planner.DefaultLoadPlanner):
    """As it is, but for what unpickles: names that do nothing."""

    def load_bytes(self, read_item, value):
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=False, pickle_module=GuardedPickle)


class NestedPlanner(default_planner._EmptyStateDictLoadPlanner):
    def load_bytes(self, read_item, value):
        loaded = torch.load(value, weights_only=False, pickle_module=GuardedPickle)
        default_planner.set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)


def load(files, planner, fill):
    reader = Reader(files)
    entries = reader.read_metadata().state_dict_metadata
    state = {fqn: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, md.TensorStorageMetadata) else entry
             for fqn, entry in entries.items()} if fill else {}
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return planner.state_dict if fill else state, reader.metadata


def element(root, path):
    for item in path:
        root = root[item]
    return root


def paths_of(files, named):
    """Where each name is in the state that PyTorch nests by planner_data; nothing where names get in each other's way there."""
    try:
        state, metadata = load(files, NestedPlanner(), fill=False)
        paths = {fqn: tuple((metadata.planner_data or {}).get(fqn, (fqn,))) for fqn in named}
        if any(Description(plain=True).of(element(state, path)) != named[fqn] for fqn, path in paths.items()):
            return ""
        return "\n".join(sorted(f"{Description().text(fqn)} {Description().text(path)}" for fqn, path in paths.items()))
    except (Exception, dcp.api.CheckpointException):
        return ""


def read_folder(data):
    """A line for each name, as dcp.load gives it; after an empty line those of its paths."""
    files = unpack(data)
    try:
        state, _ = load(files, NamedPlanner(flatten_state_dict=False), fill=True)
        if any(isinstance(v, md.BytesStorageMetadata) for v in state.values()):
            return False, "never loaded"
        named = {fqn: Description(plain=True).of(v) for fqn, v in state.items()}
        lines = sorted(f"{Description().text(fqn)} {text}" for fqn, text in named.items())
        return True, "\n".join(lines) + "\n\n" + paths_of(files, named)
    except (TooLarge, RecursionError):
        return False, "too large"
    except (Exception, dcp.api.CheckpointException) as e:
        cause = next(iter(getattr(e, "failures", {}).values()), [e])[0]
        return False, f"{type(cause).__name__}: {cause}"
