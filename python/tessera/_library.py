"""The C interface (tessera/c.h) through ctypes. Nothing here is public but what tessera/__init__.py names."""

import ctypes
import json
import os
import pathlib
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from . import errors
from ._programs import program

ABI = 1


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("rank", c_int32), ("message", c_void_p), ("file", c_void_p), ("tensor", c_void_p),
                ("operation", c_void_p), ("hint", c_void_p)]


ProgressCall = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class Watch(ctypes.Structure):
    _fields_ = [("progress", ProgressCall), ("user", c_void_p)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("index", c_uint32), ("ndim", c_uint32), ("name", c_char_p), ("dtype", c_char_p), ("kind", c_char_p),
                ("shape", POINTER(c_int64)), ("bytes", c_uint64)]


class Piece(ctypes.Structure):
    _fields_ = [("origin", POINTER(c_int64)), ("extents", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("flat_begin", c_int64), ("flat_end", c_int64), ("data", c_void_p)]


class LiveTensor(ctypes.Structure):
    _fields_ = [("dtype", c_char_p), ("shape", POINTER(c_int64)), ("pieces", POINTER(Piece)), ("ndim", c_uint32),
                ("piece_count", c_uint32), ("replicated", c_uint8), ("is_parameter", c_uint8)]


GatherCall = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
ReleaseCall = ctypes.CFUNCTYPE(None, c_void_p)


class RankCalls(ctypes.Structure):
    pass


DuplicateCall = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(RankCalls))
RankCalls._fields_ = [("user", c_void_p), ("rank", c_int32), ("size", c_int32), ("all_gather", GatherCall),
                      ("gather", GatherCall), ("duplicate", DuplicateCall), ("release", ReleaseCall)]

_SIGNATURES = {
    "tessera_error_clear": (None, [POINTER(Error)]),
    "tessera_free": (None, [c_void_p]),
    "tessera_version": (c_char_p, []),
    "tessera_abi": (c_int32, []),
    "tessera_run": (Error, [POINTER(c_char_p), c_size_t, POINTER(Watch), POINTER(c_void_p), POINTER(c_int32)]),
    "tessera_open": (Error, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "tessera_close": (None, [c_void_p]),
    "tessera_describe": (Error, [c_void_p, POINTER(c_void_p)]),
    "tessera_tensor_count": (c_size_t, [c_void_p]),
    "tessera_tensor_at": (Error, [c_void_p, c_size_t, POINTER(TensorInfo)]),
    "tessera_find": (Error, [c_void_p, c_char_p, POINTER(TensorInfo)]),
    "tessera_read": (Error, [c_void_p, c_uint32, POINTER(c_int64), POINTER(c_int64), c_void_p, c_size_t,
                             POINTER(Watch)]),
    "tessera_place": (Error, [c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_uint64)]),
    "tessera_gathered_put": (None, [c_void_p, c_int32, c_char_p, c_size_t]),
    "tessera_gathered_fail": (None, [c_void_p, c_char_p]),
    "tessera_ranks_new": (Error, [POINTER(RankCalls), POINTER(c_void_p)]),
    "tessera_ranks_single": (Error, [POINTER(c_void_p)]),
    "tessera_ranks_free": (None, [c_void_p]),
    "tessera_state_new": (Error, [c_char_p, POINTER(LiveTensor), c_size_t, c_char_p, POINTER(c_void_p)]),
    "tessera_state_free": (None, [c_void_p]),
    "tessera_save": (Error, [c_char_p, c_void_p, c_void_p, c_char_p, POINTER(Watch), POINTER(c_void_p)]),
    "tessera_save_async": (Error, [c_char_p, c_void_p, c_void_p, c_char_p, POINTER(c_void_p)]),
    "tessera_pending_done": (c_int32, [c_void_p]),
    "tessera_pending_wait": (Error, [c_void_p, POINTER(c_void_p)]),
    "tessera_pending_free": (None, [c_void_p]),
    "tessera_load": (Error, [c_char_p, c_void_p, c_void_p, c_char_p, POINTER(Watch), POINTER(c_void_p)]),
}


def _path():
    return pathlib.Path(os.environ.get("TESSERA_LIBRARY") or pathlib.Path(__file__).parent / "libtessera.so")


def _load():
    path = _path()
    if not path.exists():
        raise ImportError(f"{path} is not there: it comes with the wheel; in a build folder it is bin/libtessera.so, "
                          "which the variable TESSERA_LIBRARY may name")
    library = ctypes.CDLL(str(path))
    # The library looks for its helper beside itself; pip has put the wheel's with the other programs.
    if "TESSERA_HDF5" not in os.environ and not path.with_name("tessera-hdf5").exists():
        helper = program("tessera-hdf5")
        if helper:
            os.environ["TESSERA_HDF5"] = helper
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.tessera_abi() != ABI:
        raise ImportError(f"{path} has interface {library.tessera_abi()}, this package {ABI}: they are of different "
                          "releases")
    return library


lib = _load()


def text(pointer):
    """The text at a pointer that stays the library's; None for NULL."""
    if isinstance(pointer, bytes):  # ctypes has read it already
        return pointer.decode("utf-8", "surrogateescape")
    return None if not pointer else ctypes.string_at(pointer).decode("utf-8", "surrogateescape")


def taken(pointer):
    """The text that the library gave away."""
    try:
        return ctypes.string_at(pointer).decode("utf-8", "surrogateescape")
    finally:
        lib.tessera_free(pointer)


def check(error):
    """Raises what a call returned, unless it is success."""
    if error.code == 0:
        return
    fields = {name: text(getattr(error, name)) for name in ("message", "file", "tensor", "operation", "hint")}
    code, rank = error.code, error.rank
    lib.tessera_error_clear(ctypes.byref(error))
    raise errors.make(code, rank=None if rank < 0 else rank, **fields)


def encoded(word):
    """A path or name as the library takes it."""
    encoded_word = os.fsencode(word)
    if b"\0" in encoded_word:
        raise errors.InvalidArgument(f"{word!r} holds a zero byte")
    return encoded_word


def request(fields):
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


class Watching:
    """What a long call is given: it reports progress, and stops at Ctrl-C or when the callback raises.

    progress: None; a function of (bytes done, bytes in all); or a class or object as tqdm's, with update(n)."""

    def __init__(self, progress=None):
        self._raised = None
        self._done = 0
        self._bar = None
        self._progress = progress
        self._call = ProgressCall(self._report)
        self.watch = Watch(self._call, None)

    def __enter__(self):
        return ctypes.byref(self.watch)

    def __exit__(self, kind, error, trace):
        if self._bar is not None and self._bar is not self._progress:
            self._bar.close()
        if self._raised is not None:
            raise self._raised

    def _report(self, _, done, total):
        try:
            self._forward(done, total)
            return 0
        except BaseException as error:  # KeyboardInterrupt is why this is here
            self._raised = error
            return 1

    def _forward(self, done, total):
        progress = self._progress
        if progress is None:
            return
        if not hasattr(progress, "update"):
            progress(done, total)
            return
        if self._bar is None:
            if total == 0:
                return
            self._bar = progress(total=total, unit="B", unit_scale=True) if isinstance(progress, type) else progress
        self._bar.total = total
        if done > self._done:
            self._bar.update(done - self._done)
            self._done = done


def run(words, progress=None):
    """One command: (document, exit status)."""
    array = (c_char_p * len(words))(*[encoded(word) for word in words])
    out, status = c_void_p(), c_int32()
    with Watching(progress) as watch:
        error = lib.tessera_run(array, len(words), watch, ctypes.byref(out), ctypes.byref(status))
    check(error)
    return json.loads(taken(out)), status.value
