"""8-bit optimizer state as torchao's classes keep it, of the same name, with what PyTorch's DTensor and DCP ask of such a class: codes for each element, a
scale for each block, a table. Stands in for torchao, which is not installed for the tests; sample_checkpoints/torchao are its own files."""
import math
import torch

BLOCK = 256


class OptimState8bit(torch.Tensor):
    @staticmethod
    def __new__(cls, codes, scale, qmap, signed):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, device=codes.device, dtype=torch.float32)

    def __init__(self, codes, scale, qmap, signed):
        self.codes, self.scale, self.qmap, self.signed = codes, scale, qmap, signed
        self.block_size = codes.numel() // scale.numel()

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        name, x = func._overloadpacket.__name__, args[0]
        if name in ("detach", "alias"):
            return cls(x.codes, x.scale, x.qmap, x.signed)
        if name in ("clone", "_to_copy"):
            return cls(x.codes.clone(), x.scale.clone(), x.qmap.clone(), x.signed)
        if name == "view":
            return cls(x.codes.view(args[1]), x.scale, x.qmap, x.signed)
        if name == "is_pinned":
            return False
        if name == "copy_":
            x.codes.copy_(args[1].codes)
            x.scale.copy_(args[1].scale)
            x.qmap.copy_(args[1].qmap)
            return x
        if name == "slice":
            dim, start, end = args[1:4]
            stride = math.prod(x.shape[1:])
            assert dim == 0 and start * stride % BLOCK == 0 and end * stride % BLOCK == 0, "a cut through a block"
            return cls(x.codes[start:end], x.scale[start * stride // BLOCK:end * stride // BLOCK], x.qmap, x.signed)
        raise NotImplementedError(name)

    def __repr__(self, **kwargs):
        return "OptimState8bit"


torch.serialization.add_safe_globals([OptimState8bit])


def whole(rows, width, seed):
    g = torch.Generator().manual_seed(seed)
    return OptimState8bit(torch.randint(0, 255, (rows, width), dtype=torch.uint8, generator=g), torch.rand(rows * width // BLOCK, generator=g),
                          torch.rand(256, generator=g), True)


def state(rank, world, seed):
    """{"w": DTensor of a moment of 96 rows}, as FSDP2 with 8-bit AdamW has it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    full = whole(96, 64, seed)
    rows = -(-96 // world)
    local = full[rank * rows:min(96, (rank + 1) * rows)].clone()
    return {"optim": {"w": DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=full.shape, stride=(64, 1))}}


def save(rank, world, folder, files, seed):
    import torch.distributed.checkpoint as dcp
    saved = state(rank, world, seed)
    dcp.save(saved, checkpoint_id=folder)
    torch.save(saved, f"{files}/rank{rank}.pt")


def load(rank, world, folder, files, seed):
    """What PyTorch loads at another world size is the whole's rows, codes and scales, as the same class."""
    import torch.distributed.checkpoint as dcp
    want = state(rank, world, seed)["optim"]["w"].to_local()
    loaded = state(rank, world, seed + 1)
    dcp.load(loaded, checkpoint_id=folder)
    ranks = torch.load(f"{files}/rank{rank}.pt", weights_only=False)
    for what, found in (("dcp", loaded), ("rank files", ranks)):
        local = found["optim"]["w"].to_local()
        assert type(local) is OptimState8bit and local.block_size == BLOCK, f"{what}: {type(local)}"
        for part in ("codes", "scale", "qmap"):
            assert torch.equal(getattr(local, part), getattr(want, part)), f"{what}, rank {rank} of {world}: {part}"
