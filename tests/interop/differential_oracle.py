"""What PyTorch and the safetensors library read from a file, in the words of differential_reader.cc."""
import collections, io, pickle, struct, warnings, zlib

import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
MOST_TEXT, MOST_ELEMENTS = 1 << 20, 1 << 16
SPARSE = {torch.sparse_coo: 1, torch.sparse_csr: 2, torch.sparse_csc: 3, torch.sparse_bsr: 4, torch.sparse_bsc: 5}


class TooLarge(Exception):
    pass


def real(x):
    return "nan" if x != x else struct.pack(">d", x).hex()


def raw(t):
    """The bytes of a view, conj and neg left as they are."""
    if t.is_conj():
        t = t.conj()
    if t.is_neg():
        t = torch._neg_view(t)
    t = t.detach()
    if t.is_quantized:
        t = t.int_repr()
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def quantizer(t):
    if t.qscheme() == torch.per_tensor_affine:
        return f"per_tensor_affine {real(t.q_scale())} {t.q_zero_point()}"
    return f"{str(t.qscheme()).removeprefix('torch.')} {t.q_per_channel_axis()}"


class Description:
    """plain: of a tensor only what a copy of its elements keeps."""

    def __init__(self, plain=False):
        self.length = 0
        self.plain = plain

    def tensor(self, t):
        if t.is_nested or type(t) not in (torch.Tensor, torch.nn.Parameter):
            return "object"
        if self.plain:
            t = t.detach().resolve_conj().resolve_neg()
            t = t.to_dense() if t.layout in SPARSE else t
        out = f"T<{str(t.dtype).removeprefix('torch.')} [{','.join(map(str, t.shape))}]"
        out += " parameter" if type(t) is torch.nn.Parameter else ""
        out += " grad" if t.requires_grad else ""
        if t.is_quantized:
            out += " " + quantizer(t)
        if t.is_meta:
            return out + " meta>"
        if t.layout in SPARSE:
            t = t.detach()
            if t.layout == torch.sparse_coo:
                parts = (t._indices(), t._values())
            elif t.layout in (torch.sparse_csr, torch.sparse_bsr):
                parts = (t.crow_indices(), t.col_indices(), t.values())
            else:
                parts = (t.ccol_indices(), t.row_indices(), t.values())
            return out + f" sparse{SPARSE[t.layout]}" + "".join(map(self.tensor, parts)) + ">"
        if t.numel() > MOST_ELEMENTS:
            raise TooLarge
        out += " conj" if t.is_conj() else ""
        out += " neg" if t.is_neg() else ""
        return out + f" {zlib.crc32(raw(t)):08x}>"

    def pairs(self, d):
        return ",".join(f"{self.of(k)}:{self.of(v)}" for k, v in d.items())

    def text(self, v):
        kind = type(v)
        if v is None:
            return "N"
        if kind is bool:
            return "true" if v else "false"
        if kind is int:
            return f"i{v}"
        if kind is float:
            return "f" + real(v)
        if kind is complex:
            return "c" + real(v.real) + real(v.imag)
        if kind is str:
            data = v.encode("utf-8", "surrogatepass")
            return f"s{len(data)}:{data.hex()}"
        if kind in (bytes, bytearray):
            return f"{'b' if kind is bytes else 'y'}{len(v)}:{v.hex()}"
        if kind is list:
            return "[" + ",".join(map(self.of, v)) + "]"
        if kind is torch.Size:
            return "size(" + ",".join(map(str, v)) + ")"
        if kind is tuple:
            return "(" + ",".join(map(self.of, v)) + ")"
        if kind in (set, frozenset):
            return f"{kind.__name__}{{" + ",".join(sorted(map(self.of, v))) + "}"
        if kind is collections.OrderedDict:
            return "O{" + self.pairs(v) + "}" + (self.of(dict(v.__dict__)) if v.__dict__ else "")
        if kind in (dict, collections.Counter):
            return ("D{" if kind is dict else "C{") + self.pairs(v) + "}"
        if kind is torch.dtype:
            return str(v)
        if isinstance(v, torch.Tensor):
            return self.tensor(v)
        return "object"

    def of(self, v):
        out = self.text(v)
        self.length += len(out)
        if self.length > MOST_TEXT:
            raise TooLarge
        return out


SAFE = {("collections", "OrderedDict"), ("collections", "Counter"), ("_codecs", "encode"), ("torch", "Size"), ("torch", "device"),
        ("builtins", "set"), ("builtins", "frozenset"), ("builtins", "bytearray"), ("builtins", "complex"), ("torch", "Tensor"),
        ("torch.nn.parameter", "Parameter"), ("torch.serialization", "_get_layout"), ("torch._tensor", "_rebuild_from_type_v2")}


class Guarded(pickle.Unpickler):
    """Python's own unpickler (written in C), for names that do nothing."""

    def find_class(self, module, name):
        old = {"__builtin__": "builtins", "torch.tensor": "torch._tensor"}
        if (old.get(module, module), name) in SAFE or (module == "torch._utils" and name.startswith("_rebuild")) or \
                (module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.qscheme))):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


class GuardedPickle:
    """As a pickle module for torch.load."""
    Unpickler = Guarded
    UnpicklingError = pickle.UnpicklingError

    @staticmethod
    def load(f, **arguments):
        return Guarded(f, **arguments).load()


def read_torch(data):
    for weights_only in (True, False):
        try:
            how = {"weights_only": True} if weights_only else {"weights_only": False, "pickle_module": GuardedPickle}
            loaded = torch.load(io.BytesIO(data), map_location="cpu", **how)
            return True, Description().of(loaded)
        except (TooLarge, RecursionError):
            return False, "too large"
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
    return False, said


def read_safetensors(data):
    from safetensors import deserialize
    try:
        return True, "\n".join(sorted(
            f"{name} {','.join(map(str, t['shape']))} {zlib.crc32(bytes(t['data'])):08x}" for name, t in deserialize(bytes(data))))
    except Exception as e:
        return False, f"{type(e).__name__}: {e}"


class MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module.startswith("torch.distributed.checkpoint.") and not name.startswith("__") or (module, name) in SAFE or \
                (module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout))):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def numbers(v):
    if not isinstance(v, (tuple, list)) or not all(type(n) is int for n in v):
        raise pickle.UnpicklingError("no numbers")
    return "[" + ",".join(map(str, v)) + "]"


def read_dcp(data):
    """What DCP's reader uses of .metadata."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    try:
        metadata, lines = MetadataUnpickler(io.BytesIO(data)).load(), []
        for fqn, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                lines.append(f"{fqn} bytes")
                continue
            chunks = "".join(f" {numbers(c.offsets)}+{numbers(c.sizes)}" for c in entry.chunks)
            lines.append(f"{fqn} {str(entry.properties.dtype).removeprefix('torch.')} {numbers(entry.size)}{chunks}")
        for index, info in metadata.storage_data.items():
            offset = "None" if index.offset is None else numbers(index.offset)
            coded = " coded" if getattr(info, "transform_descriptors", None) else ""
            lines.append(f"{index.fqn} {offset} = {info.relative_path} {info.offset} {info.length}{coded}")
        return True, "\n".join(sorted(lines, key=lambda line: line.encode("utf-8", "surrogatepass")))
    except Exception as e:
        return False, f"{type(e).__name__}: {e}"


READERS = {"torch": read_torch, "dcp": read_dcp, "safetensors": read_safetensors}


def read(kind, data):
    if kind == "folder":
        from differential_dcp import read_folder
        return read_folder(data)
    if kind == "hdf5":
        from differential_hdf5 import read_hdf5
        return read_hdf5(data)
    return READERS[kind](data)


def differ(kind, ours, theirs):
    if not ours[0]:
        return False
    if not theirs[0]:
        return kind == "safetensors"
    if kind == "folder":
        (values, paths), (their_values, their_paths) = ours[1].split("\n\n"), theirs[1].split("\n\n")
        return values != their_values or (their_paths != "" and paths != their_paths)
    if kind == "hdf5":
        left_out = {line.removesuffix(" left out") for line in ours[1].split("\n") if line.endswith(" left out")}
        compared = lambda text: [line for line in text.split("\n") if not line.endswith(" left out") and line.split(" = ")[0] not in left_out]
        return compared(ours[1]) != compared(theirs[1])
    return ours[1] != theirs[1]
