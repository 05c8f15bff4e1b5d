"""Checkpoints held open: names, types and bytes of their tensors, read when they are asked for."""

import copy
import ctypes
import json
import os

from . import _library, errors
from ._library import lib

# PyTorch's name -> NumPy's own; those of ml_dtypes; bytes an element.
_NUMPY = {"bool": "bool", "uint8": "uint8", "int8": "int8", "uint16": "uint16", "int16": "int16", "uint32": "uint32",
          "int32": "int32", "uint64": "uint64", "int64": "int64", "float16": "float16", "float32": "float32",
          "float64": "float64", "complex64": "complex64", "complex128": "complex128"}
_ML_DTYPES = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3fn", "float8_e4m3fnuz": "float8_e4m3fnuz",
              "float8_e5m2": "float8_e5m2", "float8_e5m2fnuz": "float8_e5m2fnuz", "float8_e8m0fnu": "float8_e8m0fnu"}


def numpy_dtype(name):
    """NumPy's dtype for PyTorch's name; those that NumPy lacks come from ml_dtypes."""
    import numpy
    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        raise errors.Unsupported(f"NumPy has no type for {name}", hint="use .torch(), or .bytes()")
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"NumPy has no {name}: pip install ml_dtypes, or use .torch()") from None
    return numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))


def open(path, *, from_=None, root=None, include=None, exclude=None, only=None, mem_limit=None, threads=None):
    """Opens a checkpoint of any format: a Checkpoint. `root`, `include`, `exclude`, `only` select as the commands' flags do;
    `mem_limit` is in bytes."""
    listed = [[globs] if isinstance(globs, str) else globs for globs in (include, exclude)]
    return Checkpoint(path, {"from": from_, "root": root, "include": listed[0], "exclude": listed[1], "only": only,
                             "mem_limit": mem_limit, "threads": threads})


class Checkpoint:
    """Tensors by name, as a dict has them (but for `values`, which are what is no tensor). Closes with `with`, close(), or
    when it is no longer referred to; Tensors keep it open."""

    def __init__(self, path, options):
        self._handle = None
        handle = ctypes.c_void_p()
        _library.check(lib.tessera_open(_library.encoded(path), _library.request(options), ctypes.byref(handle)))
        self._handle = handle
        self._about = None

    def close(self):
        """Closes the files. Tensors can no longer be read."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.tessera_close(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    @property
    def handle(self):
        if self._handle is None:
            raise errors.InvalidArgument("the checkpoint is closed")
        return self._handle

    def __len__(self):
        return lib.tessera_tensor_count(self.handle)

    def __iter__(self):
        info = _library.TensorInfo()
        for i in range(len(self)):
            _library.check(lib.tessera_tensor_at(self.handle, i, ctypes.byref(info)))
            yield _library.text(info.name)

    def keys(self):
        """The tensors' names, in stored order."""
        return list(self)

    def items(self):
        """(name, Tensor) of each."""
        for name in self:
            yield name, self[name]

    def __contains__(self, name):
        try:
            self[name]
        except errors.UnknownTensor:
            return False
        return True

    def __getitem__(self, name):
        info = _library.TensorInfo()
        error = lib.tessera_find(self.handle, _library.encoded(name), ctypes.byref(info))
        try:
            _library.check(error)
        except errors.InvalidArgument as failure:
            raise errors.UnknownTensor(failure.message, hint=failure.hint) from None
        return Tensor(self, info)

    def __repr__(self):
        return f"<tessera.Checkpoint {self.path!r}: {self.format}, {len(self)} tensors>"

    def _fact(self, field):
        if self._about is None:
            out = ctypes.c_void_p()
            _library.check(lib.tessera_describe(self.handle, ctypes.byref(out)))
            self._about = json.loads(_library.taken(out))
        return self._about[field]

    @property
    def path(self):
        """What was opened: the folder or file that the given path leads to."""
        return self._fact("path")

    @property
    def format(self):
        """The format's id, as "torch-dcp"."""
        return self._fact("format")

    @property
    def dialect(self):
        """The format in words, with its version where it shows."""
        return self._fact("dialect")

    @property
    def world_size(self):
        """Ranks that wrote it; None where the checkpoint does not show it."""
        return self._fact("world_size")

    @property
    def optim(self):
        """Where optimizers stand in it: their dotted names, "" for the top."""
        return self._fact("optim")

    @property
    def values(self):
        """What is no tensor, by dotted name: numbers, texts, lists, as Python has them."""
        return {name: plain(value) for name, value in self._fact("values").items()}

    @property
    def notes(self):
        """Remarks of the reader, as dicts with `code`, `severity`, `message`."""
        return self._fact("notes")


def plain(value):
    """A value of `ls` as Python's own. An object of a class that is not plain data stays a dict {"__object__": class}."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, inner), = value.items()
        simple = {"__float__": lambda: float(inner.partition(":")[0]), "__int__": lambda: int(inner),
                  "__bytes_hex__": lambda: bytes.fromhex(inner), "__bytesio_hex__": lambda: bytes.fromhex(inner),
                  "__bytearray_hex__": lambda: bytearray.fromhex(inner), "__size__": lambda: tuple(inner),
                  "__tuple__": lambda: tuple(plain(each) for each in inner),
                  "__set__": lambda: {_hashable(plain(each)) for each in inner},
                  "__frozenset__": lambda: frozenset(_hashable(plain(each)) for each in inner),
                  "__complex__": lambda: complex(plain(inner[0]), plain(inner[1])), "__dtype__": lambda: inner,
                  "__text_hex__": lambda: bytes.fromhex(inner).decode("utf-8", "surrogatepass"),
                  "__dict__": lambda: {_hashable(plain(key)): plain(each) for key, each in inner}}
        if tag in simple:
            return simple[tag]()
    for tag in ("__ordered_dict__", "__default_dict__", "__counter__"):
        if tag in value:
            return {_hashable(plain(key)): plain(each) for key, each in value[tag]}
    return {key: plain(each) for key, each in value.items()}


def _hashable(value):
    return tuple(_hashable(each) for each in value) if isinstance(value, list) else value


class Tensor:
    """A tensor of a checkpoint, or a slice of one. Nothing is read before numpy(), torch() or bytes()."""

    def __init__(self, checkpoint, info):
        self.checkpoint = checkpoint
        self.name = _library.text(info.name)
        self.dtype = info.dtype.decode()
        self.kind = info.kind.decode()
        self._index = info.index
        self._whole = tuple(info.shape[d] for d in range(info.ndim))
        self._whole_bytes = info.bytes
        # Of each dim of the whole: begin, end, step, and whether it shows in `shape`.
        self._ranges = [(0, extent, 1, True) for extent in self._whole]

    @property
    def shape(self):
        return tuple(_length(begin, end, step) for begin, end, step, shown in self._ranges if shown)

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        """Elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def is_whole(self):
        return all((begin, end, step, shown) == (0, extent, 1, True)
                   for (begin, end, step, shown), extent in zip(self._ranges, self._whole))

    def __repr__(self):
        return f"<tessera.Tensor {self.name!r}: {self.dtype} {list(self.shape)}>"

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without dims has no length")
        return self.shape[0]

    def __getitem__(self, key):
        """A part, by integers, slices and `...`, as NumPy's; steps are positive. Lazy."""
        keys = key if isinstance(key, tuple) else (key,)
        shown = [d for d, each in enumerate(self._ranges) if each[3]]
        if sum(each is Ellipsis for each in keys) > 1:
            raise errors.InvalidArgument("more than one ... in an index")
        if Ellipsis not in keys:
            keys += (Ellipsis,)
        at = keys.index(Ellipsis)
        fill = len(shown) - (len(keys) - 1)
        if fill < 0:
            raise errors.OutOfRange(f"{len(keys) - 1} indices for {len(shown)} dims")
        keys = keys[:at] + (slice(None),) * fill + keys[at + 1:]
        ranges = list(self._ranges)
        for d, each in zip(shown, keys):
            ranges[d] = _narrowed(ranges[d], each, d)
        part = copy.copy(self)
        part._ranges = ranges
        return part

    def _read_into(self, address, size, progress):
        ndim = len(self._whole)
        begin = (ctypes.c_int64 * ndim)(*[each[0] for each in self._ranges])
        end = (ctypes.c_int64 * ndim)(*[each[1] for each in self._ranges])
        block = (None, None) if self.is_whole else (begin, end)
        with _library.Watching(progress) as watch:
            error = lib.tessera_read(self.checkpoint.handle, self._index, *block, address, size, watch)
        _library.check(error)

    def _block(self):
        """The extents of what is read: a step takes the elements between its own."""
        return [end - begin for begin, end, _, _ in self._ranges]

    def _shown(self):
        """What takes the asked elements out of the block."""
        return tuple(slice(None, None, step) if shown else 0 for _, _, step, shown in self._ranges)

    def numpy(self, *, copy=True, progress=None):
        """A NumPy array. The bytes are read and their checksums checked; with copy=False the file is mapped instead, read-only
        and unchecked (verify() checks), where all of the tensor lies in one row of one file: else Unsupported."""
        import numpy
        dtype = numpy_dtype(self.dtype)
        if not copy:
            file, offset = self.place()
            if 0 in self._whole:
                return numpy.empty(self._whole, dtype)[self._index_of_map()]
            return numpy.memmap(file, dtype, "r", offset, self._whole)[self._index_of_map()]
        out = numpy.empty(self._block(), dtype)
        self._read_into(out.ctypes.data, out.nbytes, progress)
        return out[self._shown()]

    def _index_of_map(self):
        return tuple(slice(begin, end, step) if shown else begin for begin, end, step, shown in self._ranges)

    def torch(self, *, device=None, progress=None):
        """A PyTorch tensor."""
        import torch
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise errors.Unsupported(f"this PyTorch has no {self.dtype}", tensor=self.name)
        out = torch.empty(self._block(), dtype=dtype)
        self._read_into(out.data_ptr(), out.nbytes, progress)
        out = out[self._shown()]
        return out if device is None else out.to(device)

    def bytes(self, *, progress=None):
        """The content: row-major, unpadded, little-endian."""
        if self.is_whole:
            out = bytearray(self._whole_bytes)
            self._read_into((ctypes.c_char * len(out)).from_buffer(out) if out else None, len(out), progress)
            return bytes(out)
        return self.numpy(progress=progress).tobytes()

    def place(self):
        """(file, offset) of all of the tensor's bytes, where they lie in one row as they are; else Unsupported."""
        file, offset = ctypes.c_void_p(), ctypes.c_uint64()
        _library.check(lib.tessera_place(self.checkpoint.handle, self._index, ctypes.byref(file), ctypes.byref(offset)))
        return os.fsdecode(_library.taken(file).encode("utf-8", "surrogateescape")), offset.value

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options):
        return self._for_dlpack().__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)  # the CPU's memory

    def _for_dlpack(self):
        return self.numpy() if self.dtype in _NUMPY else self.torch()


def _length(begin, end, step):
    return max(0, -(-(end - begin) // step))


def _narrowed(old, key, dim):
    begin, end, step, _ = old
    extent = _length(begin, end, step)
    if isinstance(key, slice):
        first, last, stride = key.indices(extent)
        if stride < 1:
            raise errors.InvalidArgument(f"dim {dim}: steps are positive")
        count = _length(first, last, stride)
        start = begin + first * step
        if count == 0:
            return (begin, begin, 1, True)
        return (start, start + (count - 1) * stride * step + 1, stride * step, True)
    if isinstance(key, bool) or not hasattr(key, "__index__"):  # to NumPy a bool is a mask
        raise errors.InvalidArgument(f"dim {dim}: {type(key).__name__} is no index")
    at = key.__index__()
    if not -extent <= at < extent:
        raise errors.OutOfRange(f"index {at} of dim {dim}, which has {extent}")
    start = begin + (at % extent) * step
    return (start, start + 1, 1, False)
