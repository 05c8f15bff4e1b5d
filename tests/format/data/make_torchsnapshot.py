"""Makes torchsnapshot_w2: two ranks, every kind of entry. Needs torchsnapshot with DTensor entries (its sources after 0.1.0) and PyYAML.

    python make_torchsnapshot.py FOLDER

metadata.yaml holds the same entries as .snapshot_metadata, as releases before 0.1.0 wrote them."""
import json, os, shutil, sys
os.environ["TORCHSNAPSHOT_MAX_CHUNK_SIZE_BYTES_OVERRIDE"] = "200"
os.environ["TORCHSNAPSHOT_MAX_SHARD_SIZE_BYTES_OVERRIDE"] = "200"
from collections import OrderedDict
import torch, torch.distributed as dist, torch.multiprocessing as mp, yaml


def counted(*shape, first=0, dtype=torch.float32):
    n = 1
    for s in shape:
        n *= s
    return torch.arange(first, first + n, dtype=dtype).reshape(shape)


def work(rank, world, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    from torch.distributed._shard import sharded_tensor as st
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed._tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    from torchsnapshot import Snapshot, StateDict
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
    o = torch.optim.Adam(m.parameters())
    m(torch.randn(2, 7)).sum().backward()
    o.step()
    mesh = DeviceMesh("cpu", list(range(world)))
    s = st.empty(ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(world)]), 9, 4)
    for shard in s.local_shards():
        shard.tensor.copy_(counted(*shard.tensor.shape, first=shard.metadata.shard_offsets[0] * 4))
    extra = StateDict(
        ints={1: "one", "1x": 2, "a/b": 3, "50%": [1, 2, [torch.ones(2)]]}, cplx=torch.complex(torch.arange(3.), torch.ones(3)),
        q=torch.quantize_per_tensor(torch.arange(6.), 0.5, 1, torch.qint8), bf=torch.arange(4, dtype=torch.bfloat16), zero=torch.tensor(3),
        bigchunk=counted(100, 3, dtype=torch.int64), text="line\nnext: x", uni="h\u00e9llo \u2028 'q' \"d\"", by=b"\x00\x01\xff", big=2**80,
        neg=-5, f=float("nan"), none=None, t=(1, 2), flag=True, odict=OrderedDict(b=1, a=2), emptyd={}, emptyl=[], tup_key={(1, 2): 3},
        longkey={"k" * 150: 1}, mine=torch.full((3,), float(rank)), myval=rank, **({"only1": torch.ones(2)} if rank == 1 else {}))
    shards = StateDict(dt=distribute_tensor(counted(7, 5), mesh, [Shard(0)]), rep=distribute_tensor(counted(7, 5, first=1), mesh, [Replicate()]))
    Snapshot.take(out, {"model": m, "optim": o, "extra": extra, "sh": shards, "st": StateDict(s=s)}, replicated=["model/**"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    out = sys.argv[1]
    shutil.rmtree(out, ignore_errors=True)
    mp.spawn(work, (2, out), nprocs=2)
    entries = json.load(open(out + "/.snapshot_metadata"))
    open(out + "/metadata.yaml", "w").write(yaml.dump(entries, sort_keys=False))
