"""Writes dtensor_shards.txt: what PyTorch's DTensor gives each rank, for many shapes, meshes and placements.

    python make_dtensor_shards.py > dtensor_shards.txt        (PyTorch 2.13)

Each case is a line `case SHAPE MESH PLACEMENTS`, then one line per rank: the local shape, the global offset
that DCP records, and per tensor dim the global indices held, as runs in local order (`-` where none).
The indices come from splitting an arange along the dim, placement by placement, with the placements' own
_split_tensor; shape and offset from _compute_local_shape_and_global_offset.
"""
import itertools

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard


def runs(indices):
    out = []
    for i in indices:
        if out and out[-1][1] == i:
            out[-1][1] = i + 1
        else:
            out.append([i, i + 1])
    return ",".join(f"{a}:{b}" for a, b in out) or "-"


def text(placement):
    if isinstance(placement, _StridedShard):
        return f"strided({placement.dim},{placement.split_factor})"
    if isinstance(placement, Shard):
        return f"shard({placement.dim})"
    return "replicate"


def held(shape, mesh, coordinate, placements, dim):
    rows = torch.arange(shape[dim])
    for size, index, placement in zip(mesh, coordinate, placements):
        if isinstance(placement, Replicate) or placement.dim != dim:
            continue
        along = rows.view([1] * dim + [-1])
        shards, _ = placement._split_tensor(along, size, with_padding=False, contiguous=False)
        rows = shards[index].reshape(-1)
    return rows.tolist()


def emit(shape, mesh, placements):
    dims = ",".join(map(str, shape)) or "-"
    print("case", dims, ",".join(map(str, mesh)), ",".join(map(text, placements)))
    for coordinate in itertools.product(*map(range, mesh)):
        local, offset = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
        index_runs = [runs(held(shape, mesh, coordinate, placements, d)) for d in range(len(shape))]
        fields = [",".join(map(str, local)) or "-", ",".join(map(str, offset)) or "-", *index_runs]
        print(*fields)


def strided(dim, mesh, at, rest):
    """The strided placement of mesh dim `at` when the later ones are `rest`."""
    factor = 1
    for size, placement in zip(mesh[at + 1:], rest):
        if not isinstance(placement, Replicate) and placement.dim == dim:
            factor *= size
    return _StridedShard(dim, split_factor=factor)


def main():
    print("# written by make_dtensor_shards.py with PyTorch", torch.__version__.split("+")[0])
    emit((), (3,), (Replicate(),))
    for shape in [(0,), (1,), (2,), (5,), (7,), (16,), (0, 4), (4, 0), (3, 5), (10, 6)]:
        for world in (1, 2, 3, 7):
            for dim in range(len(shape)):
                emit(shape, (world,), (Shard(dim),))
    for shape in [(5,), (9,), (13,), (0, 4), (2, 3), (10, 6), (3, 7, 2)]:
        for mesh in [(2, 2), (2, 3), (3, 2), (1, 4), (4, 2)]:
            dims = range(min(len(shape), 2))
            single = [Replicate(), *map(Shard, dims)]
            for pair in itertools.product(single, single):
                emit(shape, mesh, pair)
            for dim in dims:
                emit(shape, mesh, (strided(dim, mesh, 0, [Shard(dim)]), Shard(dim)))
    for rows in (0, 1, 5, 12, 17, 29, 33):
        for mesh in [(2, 2, 2), (2, 3, 2), (3, 2, 4)]:
            tail = Shard(0)
            middle = strided(0, mesh, 1, [tail])
            emit((rows, 3), mesh, (strided(0, mesh, 0, [middle, tail]), middle, tail))
            emit((rows, 3), mesh, (strided(0, mesh, 0, [tail, tail]), tail, tail))
            emit((rows, 3), mesh, (Replicate(), middle, tail))
            emit((rows, 3), mesh, (tail, middle, tail))
            emit((rows, 3), mesh, (strided(0, mesh, 0, [Shard(1), tail]), Shard(1), tail))


main()
