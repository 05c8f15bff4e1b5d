"""PyTorch's checkpoints by Tessera's engine: save, load and async_save in place of torch.distributed.checkpoint's, and a
StorageReader and StorageWriter for its planners.

    import tessera.torch
    tessera.torch.save({"model": model.state_dict(), "step": 4}, checkpoint_id="run/step-4")     # on every rank
    tessera.torch.load(state, checkpoint_id="run/step-4")                                        # in place
    dcp.load(state, storage_reader=tessera.torch.Reader("deepspeed_run"))                        # from any format

What save writes is a checkpoint of torch.distributed.checkpoint, which its own loader reads, published whole or not at all and
sealed with checksums. A state dict may hold tensors, DTensors, ShardedTensors, dicts, lists, tuples, numbers, texts, bytes, None
and objects with state_dict(); other objects are refused, by name, as reading them back would run code."""

import collections
import ctypes
import io
import json
import math
import pickle

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _library, errors
from ._library import lib
from .checkpoint import Checkpoint, plain
from .ranks import Ranks

__all__ = ["LoadReport", "Reader", "SaveReport", "Writer", "async_save", "load", "save"]


class _Report:
    """The document that a save or load returns; its fields are attributes."""

    def __init__(self, document):
        self.document = document

    def __getattr__(self, name):
        try:
            return self.__dict__["document"][name]
        except KeyError:
            raise AttributeError(name) from None


class SaveReport(_Report):
    """bytes_written (by this rank), total_bytes, seconds, plan_reused, plan_bytes, removed, failed_removals, balance."""

    def __repr__(self):
        return f"<SaveReport {self.total_bytes} bytes, {self.seconds:.3f} s>"


class LoadReport(_Report):
    """format, path, bytes_read, seconds, and names: loaded, missing, unexpected, skipped, mismatched, cast."""

    def __repr__(self):
        return f"<LoadReport {self.format}, {len(self.loaded)} entries, {self.seconds:.3f} s>"


_groups = {}


def _ranks(process_group, no_dist):
    if no_dist or not (dist.is_available() and dist.is_initialized()):
        return _groups.setdefault("single", Ranks(single=True))
    # Bytes of the host are exchanged: a group whose backend moves tensors of a device gets one beside it that can.
    group = process_group
    key = id(group) if group is not None else "world"
    if key not in _groups:
        backend = dist.get_backend(group)
        if "gloo" not in str(backend):
            members = dist.get_process_group_ranks(group) if group is not None else None
            group = dist.new_group(members, backend="gloo")
        _groups[key] = Ranks(group)
        _groups[key].process_group = process_group  # its id stays taken
    return _groups[key]


def save(state_dict, checkpoint_id=None, *, storage_writer=None, planner=None, process_group=None, no_dist=False,
         force=False, update_latest=False, keep_last=0, progress=None, **options):
    """Writes `state_dict` to the folder `checkpoint_id`, on all ranks of the group together: SaveReport.

    force: replaces a checkpoint that is there. update_latest: `latest` beside it names it. keep_last: so many checkpoints of the
    same name with another number stay. Others: mem_limit (bytes a rank), threads."""
    _refuse(storage_writer, planner, "dcp.save")
    state = _State(state_dict, for_load=False)
    out = ctypes.c_void_p()
    request = _library.request({"force": force, "update_latest": update_latest, "keep_last": keep_last, **options})
    with _library.Watching(progress) as watch:
        error = lib.tessera_save(_path(checkpoint_id), state.handle, _ranks(process_group, no_dist).handle, request,
                                 watch, ctypes.byref(out))
    _library.check(error)
    return SaveReport(json.loads(_library.taken(out)))


class PendingSave:
    """A save that goes on in the background: result() waits for it."""

    def __init__(self, handle, state, ranks):
        self._handle, self._state, self._ranks, self._report = handle, state, ranks, None

    def done(self):
        return bool(lib.tessera_pending_done(self._handle))

    def result(self):
        """SaveReport; raises what went wrong, on every rank."""
        if self._report is None:
            out = ctypes.c_void_p()
            _library.check(lib.tessera_pending_wait(self._handle, ctypes.byref(out)))
            self._report = SaveReport(json.loads(_library.taken(out)))
        return self._report

    def __del__(self):
        lib.tessera_pending_free(self._handle)


def async_save(state_dict, checkpoint_id=None, *, storage_writer=None, planner=None, process_group=None, no_dist=False,
               force=False, update_latest=False, keep_last=0, **options):
    """As save(), but returns once the state has been copied: training may go on. Its result() is the SaveReport."""
    _refuse(storage_writer, planner, "dcp.async_save")
    state, ranks = _State(state_dict, for_load=False), _ranks(process_group, no_dist)
    handle = ctypes.c_void_p()
    request = _library.request({"force": force, "update_latest": update_latest, "keep_last": keep_last, **options})
    _library.check(lib.tessera_save_async(_path(checkpoint_id), state.handle, ranks.handle, request,
                                          ctypes.byref(handle)))
    return PendingSave(handle, state, ranks)


def load(state_dict, checkpoint_id=None, *, storage_reader=None, planner=None, process_group=None, no_dist=False,
         strict=False, progress=None, **policy):
    """Fills `state_dict` in place from a checkpoint of any format and number of ranks: LoadReport. Tensors keep their memory;
    numbers, texts and lists are replaced; an object with load_state_dict() gets its state.

    What the state dict asks for must be there. What is stored and not asked for is left out, as torch.distributed.checkpoint
    does; strict=True refuses it. Others: tessera/c.h, tessera_load: model, optimizer, other ("strict", "allow_missing",
    "allow_unexpected", "allow_both", "skip"), allow_cast, root, verify, safety, ..."""
    _refuse(storage_reader, planner, "dcp.load")
    if not strict:
        policy = {**dict.fromkeys(("model", "optimizer", "other"), "allow_unexpected"), **policy}
    state = _State(state_dict, for_load=True)
    out = ctypes.c_void_p()
    with _library.Watching(progress) as watch:
        error = lib.tessera_load(_path(checkpoint_id), state.handle, _ranks(process_group, no_dist).handle,
                                 _library.request(policy), watch, ctypes.byref(out))
    _library.check(error)
    report = LoadReport(json.loads(_library.taken(out)))
    state.finish_load(report)
    return report


def _refuse(storage, planner, call):
    if storage is not None or planner is not None:
        raise errors.InvalidArgument(f"a storage or planner of your own is for {call}",
                                     hint="tessera.torch.Reader and Writer are storages for it")


def _path(checkpoint_id):
    if checkpoint_id is None:
        raise errors.InvalidArgument("checkpoint_id is not given")
    return _library.encoded(checkpoint_id)


# ---- a state dict as the library takes it ----

def _numbers(values):
    return (ctypes.c_int64 * len(values))(*values)


def _is_stateful(value):
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _dotted(path):
    return ".".join(str(_key(item)) for item in path)


def _dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


class _Tensors:
    """Tensors under construction; holds what must stay in memory while the library looks at it."""

    def __init__(self):
        self.rows, self.kept = [], []

    def add(self, dtype, shape, pieces, replicated):
        """pieces: [(origin, tensor on the CPU)]"""
        made = (_library.Piece * max(1, len(pieces)))()
        for piece, (origin, tensor) in zip(made, pieces):
            arrays = [_numbers(values) for values in (origin, tensor.shape, tensor.stride())]
            piece.origin, piece.extents, piece.strides = arrays
            piece.flat_begin, piece.flat_end = 0, -1
            piece.data = tensor.data_ptr()
            self.kept += [*arrays, tensor]
        row = _library.LiveTensor()
        row.dtype, shape_array = _dtype_name(dtype).encode(), _numbers(shape)
        row.shape, row.pieces, row.ndim = shape_array, made, len(shape)
        row.piece_count, row.replicated = len(pieces), replicated
        self.kept += [shape_array, made]
        self.rows.append(row)
        return len(self.rows) - 1

    def handle(self, tree):
        out = ctypes.c_void_p()
        array = (_library.LiveTensor * max(1, len(self.rows)))(*self.rows)
        _library.check(lib.tessera_state_new(json.dumps(tree).encode(), array, len(self.rows), None, ctypes.byref(out)))
        return out


class _State:
    """A state dict turned into the library's. `for_load`: device tensors are filled by way of the host."""

    def __init__(self, state_dict, for_load):
        self.handle = None
        self._dict, self._for_load = state_dict, for_load
        self._tensors, self._back, self._stateful = _Tensors(), [], []
        self._holders = {}  # path of what stands for an object with state_dict() -> its state
        self.handle = self._tensors.handle(self._tree(state_dict, ()))

    def __del__(self):
        if self.handle:
            lib.tessera_state_free(self.handle)

    def _tree(self, value, path):
        if isinstance(value, torch.Tensor) or _is_sharded_tensor(value):
            return {"__tensor__": str(self._tensor(value, path))}
        if _is_stateful(value):
            state = value.state_dict()
            self._stateful.append((value, state))
            self._holders[path] = state
            value = state
        return _tagged(value, path, self._tree)

    def _host(self, tensor):
        """The tensor in this process's own memory; a load copies it back."""
        tensor = tensor.detach()
        if tensor.is_quantized or tensor.layout != torch.strided:
            raise errors.Unsupported(f"a tensor with layout {tensor.layout}" if not tensor.is_quantized
                                     else "a quantized tensor")
        if tensor.is_conj() or tensor.is_neg():
            if self._for_load:
                raise errors.Unsupported("a conjugated view cannot be filled")
            tensor = tensor.resolve_conj().resolve_neg()
        if tensor.device.type == "cpu":
            return tensor
        host = torch.empty_like(tensor, device="cpu") if self._for_load else tensor.cpu()
        if self._for_load:
            self._back.append((tensor, host))
        return host

    def _tensor(self, value, path):
        try:
            if _is_sharded_tensor(value):
                pieces = [(shard.metadata.shard_offsets, self._host(shard.tensor)) for shard in value.local_shards()]
                return self._tensors.add(value.dtype, value.size(), pieces, False)
            if _is_dtensor(value):
                return self._dtensor(value)
            whole = self._host(value)
            return self._tensors.add(whole.dtype, whole.shape, [((0,) * whole.dim(), whole)], True)
        except errors.Unsupported as error:
            error.tensor = _dotted(path)
            raise

    def _dtensor(self, value):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
        if any(placement.is_partial() for placement in value.placements):
            raise errors.Unsupported("a DTensor with partial sums", hint="redistribute it first")
        local = value.to_local()
        shape, origin = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        pieces = []
        if value.device_mesh.get_coordinate() is not None and math.prod(shape):
            pieces = [(origin, self._host(local))]
        replicated = any(placement.is_replicate() for placement in value.placements)
        return self._tensors.add(value.dtype, value.shape, pieces, replicated)

    def finish_load(self, report):
        with torch.no_grad():
            for tensor, host in self._back:
                tensor.copy_(host)
        for row in report.values:
            if "value" not in row:
                raise errors.Unsupported(f"the stored value is {row['object']}", tensor=row["name"],
                                         hint="dcp.load with tessera.torch.Reader refuses it too; take it out of the state")
            self._put(row["path"], plain(row["value"]))
        for holder, state in self._stateful:
            holder.load_state_dict(state)

    def _put(self, path, value):
        path = [(item[0],) if isinstance(item, list) else item for item in path]  # a list index: a tuple of one
        at, holder = (), self._dict
        for item in path[:-1]:
            at = (*at, item)
            holder = self._holders.get(at, holder[_key(item)])
        holder[_key(path[-1])] = value


def _key(item):
    return item[0] if isinstance(item, tuple) else item


def _is_dtensor(value):
    return hasattr(value, "device_mesh") and hasattr(value, "placements")


def _is_sharded_tensor(value):
    return hasattr(value, "local_shards") and hasattr(value, "sharding_spec")


def _object(value, path):
    return errors.Unsupported(f"{_dotted(path) or 'the state'} is an object of {type(value).__module__}."
                              f"{type(value).__qualname__}: reading it back would run code",
                              hint="save its plain data: numbers, texts, lists, dicts, tensors")


def _tagged(value, path, inner=None):
    """A value as tagged JSON (tessera/encoding/tagged_json.h). inner(value, path): the same of what containers hold; without
    it they hold no tensors."""
    inner, kind = inner or _tagged, type(value)
    if value is None or kind in (bool, str):
        if kind is str:
            try:
                value.encode()
            except UnicodeEncodeError:
                return {"__text_hex__": value.encode("utf-8", "surrogatepass").hex()}
        return value
    if kind is int:
        return value if abs(value) <= 2**53 else {"__int__": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if kind is complex:
        return {"__complex__": [_tagged(value.real, path), _tagged(value.imag, path)]}
    if kind is bytes:
        return {"__bytes_hex__": value.hex()}
    if kind is bytearray:
        return {"__bytearray_hex__": value.hex()}
    if kind is torch.Size:
        return {"__size__": list(value)}
    if kind is torch.dtype:
        return {"__dtype__": _dtype_name(value)}
    if kind in (set, frozenset):
        return {f"__{kind.__name__}__": [_tagged(each, path) for each in value]}
    if isinstance(value, list) or kind is tuple:
        items = [inner(each, (*path, (i,))) for i, each in enumerate(value)]
        return {"__tuple__": items} if kind is tuple else items
    if kind in (dict, collections.OrderedDict):
        rows = [[_tagged(key, path), inner(each, (*path, key))] for key, each in value.items()]
        return {"__dict__": rows} if kind is dict else {"__ordered_dict__": rows, "attributes": None}
    raise _object(value, path)


# ---- storages for torch.distributed.checkpoint's planners ----

class Reader(StorageReader):
    """A StorageReader over any checkpoint that Tessera opens. `rename`: a function from a stored name to the one that the state
    dict asks for (None leaves the tensor out); `root`, `only`, ...: as tessera.open. PyTorch's planner reshards."""

    def __init__(self, path, *, rename=None, **options):
        self._path, self._rename, self._options = path, rename, options
        self._checkpoint, self._names, self._values = None, {}, {}

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._path = checkpoint_id
        self._checkpoint = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True

    def _open(self):
        if self._checkpoint is not None:
            return
        from .checkpoint import open as open_checkpoint
        self._checkpoint = open_checkpoint(self._path, **self._options)
        rename = self._rename or (lambda name: name)
        self._names = {rename(name): name for name in self._checkpoint}
        self._values = {rename(name): value for name, value in self._checkpoint.values.items()}
        self._names.pop(None, None)
        self._values.pop(None, None)

    def read_metadata(self, *args, **kwargs):
        self._open()
        rows = {}
        for asked, name in self._names.items():
            tensor = self._checkpoint[name]
            dtype = getattr(torch, tensor.dtype, None)
            if not isinstance(dtype, torch.dtype):
                continue  # a type that this PyTorch lacks: missing, if it is asked for
            size = torch.Size(tensor.shape)
            chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            rows[asked] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, [chunk])
        for asked in self._values:
            rows[asked] = BytesStorageMetadata()
        return Metadata(state_dict_metadata=rows)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._open()

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(_torch_bytes(self._values[name])))
                continue
            part = self._checkpoint[self._names[name]]
            part = part[tuple(slice(at, at + size) for at, size in zip(item.storage_offsets, item.lengths))]
            target = planner.resolve_tensor(item).detach()
            target.copy_(part.torch().reshape(target.shape))
            planner.commit_tensor(item, target)
        done = Future()
        done.set_result(None)
        return done


def _torch_bytes(value):
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class Writer(StorageWriter):
    """A StorageWriter by Tessera's engine: dcp.save(state, storage_writer=Writer("run/step-4")). options: those of save()."""

    def __init__(self, path, *, process_group=None, no_dist=False, force=False, update_latest=False, keep_last=0, **options):
        self._path, self._group = path, (process_group, no_dist)
        self._options = {"force": force, "update_latest": update_latest, "keep_last": keep_last, **options}
        self.report = None

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._path = checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        pass

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def write_data(self, plan, planner):
        """Collective: each rank's items are its pieces of the state, and the checkpoint is published when all are written."""
        tensors, rows, values, results = _Tensors(), {}, {}, []
        tree = _Nested(getattr(planner, "mappings", None) or {})
        for item in plan.items:
            fqn = item.index.fqn
            if item.type == WriteItemType.BYTE_IO:  # the engine wants the value, not a pickle of it
                values[fqn] = _tagged(planner.lookup_object(item.index), (fqn,))
                results.append(WriteResult(index=item.index, size_in_bytes=0, storage_data=None))
                continue
            data = planner.resolve_data(item)
            results.append(WriteResult(index=item.index, size_in_bytes=data.nbytes, storage_data=None))
            info = item.tensor_data
            host = data.detach().to("cpu")
            rows.setdefault(fqn, (info, []))[1].append((tuple(info.chunk.offsets), host))
        # The planner gives each value to one rank; the engine wants all ranks to state it. A list has no holes: tensors in one
        # stand on every rank, some without a piece.
        listed = {fqn: (info.properties.dtype, tuple(info.size)) for fqn, (info, _) in rows.items() if tree.is_in_list(fqn)}
        values, listed = self._of_all(values, listed)
        described = {fqn: (info.properties.dtype, tuple(info.size)) for fqn, (info, _) in rows.items()}
        for fqn, (dtype, shape) in {**listed, **described}.items():
            pieces = rows[fqn][1] if fqn in rows else []
            tree.put(fqn, {"__tensor__": str(tensors.add(dtype, shape, pieces, False))})
        for fqn in sorted(values):
            tree.put(fqn, values[fqn])
        handle = tensors.handle(tree.tagged())
        try:
            out = ctypes.c_void_p()
            _library.check(lib.tessera_save(_path(self._path), handle, _ranks(*self._group).handle,
                                            _library.request(self._options), None, ctypes.byref(out)))
            self.report = SaveReport(json.loads(_library.taken(out)))
        finally:
            lib.tessera_state_free(handle)
        done = Future()
        done.set_result(results)
        return done

    def _of_all(self, *mine):
        """Each of these dicts with what the other ranks have in theirs."""
        group, no_dist = self._group
        if no_dist or not (dist.is_available() and dist.is_initialized()):
            return mine
        parts = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, mine, group=group)
        return tuple({key: row for part in parts for key, row in part[i].items()} for i in range(len(mine)))

    def finish(self, metadata, results):
        """All is published already, with metadata of the engine's own."""


class _Nested:
    """Flat names as the tree that the planner flattened: paths of dict keys, which are texts, and list indices."""

    def __init__(self, mappings):
        self._mappings, self._rows = mappings, []

    def put(self, fqn, row):
        self._rows.append((self._mappings.get(fqn, (fqn,)), row))

    def is_in_list(self, fqn):
        return any(isinstance(item, int) for item in self._mappings.get(fqn, ()))

    def tagged(self):
        return self._level(self._rows)

    def _level(self, rows):
        if len(rows) == 1 and not rows[0][0]:
            return rows[0][1]
        groups = {}
        for path, row in rows:
            groups.setdefault(path[0], []).append((path[1:], row))
        if all(isinstance(key, int) for key in groups) and groups:
            return [self._level(groups[i]) for i in sorted(groups)]
        return {"__dict__": [[key, self._level(below)] for key, below in groups.items()]}
