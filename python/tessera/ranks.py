"""A torch.distributed process group as the group of ranks that a save or load runs on."""

import ctypes

import torch
import torch.distributed as dist

from . import _library
from ._library import lib


class Ranks:
    """The group of one process, or of a process group. Keep it until saves in the background have ended."""

    def __init__(self, group=None, *, single=False):
        self.handle = ctypes.c_void_p()
        if single:
            _library.check(lib.tessera_ranks_single(ctypes.byref(self.handle)))
            return
        self._calls = _Calls(group)
        _library.check(lib.tessera_ranks_new(ctypes.byref(self._calls.table), ctypes.byref(self.handle)))

    def __del__(self):
        if self.handle:
            lib.tessera_ranks_free(self.handle)
            self.handle = None


_alive = {}  # id -> _Calls of a duplicate, until the library releases it


class _Calls:
    """The calls of one group, by tensors of bytes. They may come from a thread of the library's."""

    def __init__(self, group):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.table = _library.RankCalls(None, self.rank, self.size, _library.GatherCall(self._all_gather),
                                        _library.GatherCall(self._gather), _library.DuplicateCall(self._duplicate),
                                        _library.ReleaseCall(self._release))

    def _all_gather(self, _, data, count, sink):
        return self._guarded(sink, lambda: self._exchange(data, count, sink, everywhere=True))

    def _gather(self, _, data, count, sink):
        return self._guarded(sink, lambda: self._exchange(data, count, sink, everywhere=False))

    def _guarded(self, sink, work):
        try:
            work()
            return 0
        except BaseException as error:  # nothing may leave a callback
            lib.tessera_gathered_fail(sink, f"{type(error).__name__}: {error}".encode())
            return 1

    def _exchange(self, data, count, sink, everywhere):
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([count], dtype=torch.int64), group=self.group)
        most = max(int(size) for size in sizes)
        mine = torch.zeros(most, dtype=torch.uint8)
        if count:
            ctypes.memmove(mine.data_ptr(), data, count)
        receives = everywhere or self.rank == 0
        parts = [torch.empty(most, dtype=torch.uint8) for _ in range(self.size)] if receives else None
        if most == 0:
            pass
        elif everywhere:
            dist.all_gather(parts, mine, group=self.group)
        else:
            dist.gather(mine, parts, dst=dist.get_global_rank(self.group, 0) if self.group else 0, group=self.group)
        for rank in range(self.size if receives else 0):
            size = int(sizes[rank])
            lib.tessera_gathered_put(sink, rank, ctypes.string_at(parts[rank].data_ptr(), size) if size else b"", size)

    def _duplicate(self, _, out):
        try:
            members = dist.get_process_group_ranks(self.group) if self.group else None
            made = _Calls(dist.new_group(members, backend="gloo"))
        except BaseException:
            return 1
        _alive[id(made)] = made
        made.table.user = id(made)
        ctypes.memmove(out, ctypes.byref(made.table), ctypes.sizeof(made.table))
        return 0

    @staticmethod
    def _release(user):
        _alive.pop(user, None)
