"""torch_checkpointing's own loader takes what we write: as it is on as many ranks, and resharded by it to another number and other
placements; what it loads is the oracle's, and training goes on from it. The files load with weights_only=True as well."""
import importlib.util, json, os, sys, tempfile
from support import SAMPLES, compare, compare_values, done, sha256, tool
import torch
from common import VISIBLE, flatten, spawn, train

if importlib.util.find_spec("torch_checkpointing") is None:
    print("skipped: torch_checkpointing is not installed; ./dev test installs it")
    sys.exit(77)

CASES = ("dcp/fsdp2_w4", "torch-checkpointing/tp_fsdp_2x2", "torch-checkpointing/uneven_w4", "torch-checkpointing/metadata_v1_w2")


def items_of(folder):
    return sorted({name.rsplit("_", 1)[0] for name in os.listdir(folder) if name.endswith(".pt")})


def whole(state):
    """Gathered over a living mesh: an unpickled one of two dims has no process groups."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    meshes, out = {}, {}
    for name, value in flatten(state).items():
        if isinstance(value, DTensor):
            shape = tuple(value.device_mesh.shape)
            if shape not in meshes:
                meshes[shape] = init_device_mesh("cpu", shape)
            value = DTensor.from_local(value._local_tensor, meshes[shape], value.placements, run_check=False, shape=value.shape,
                                       stride=value.stride()).full_tensor()
        out[name] = value
    return out


def manager(resharder):
    from torch_checkpointing import CheckpointManager, ItemSpec
    from torch_checkpointing.default_resharder import DefaultResharder
    spec = ItemSpec(resharder=DefaultResharder()) if resharder else ItemSpec()
    config = CheckpointManager.Config.with_sync_save()
    config.default = spec
    return CheckpointManager(config=config)


def as_it_is(rank, world, folder, expected):
    """Each rank reads its own files, without a target."""
    names = items_of(folder)
    for name in names:
        torch.load(os.path.join(folder, f"{name}_{rank}.pt"), weights_only=True)
    full = whole(manager(False).load(folder, into=dict.fromkeys(names)))
    compare(full, expected, f"{folder} on rank {rank}")
    compare_values(full, expected, f"{folder} on rank {rank}")


def target_like(value, mesh):
    """The same tree with zeros: DTensors laid out anew, of every other one the second dim is cut."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, zeros
    if isinstance(value, DTensor):
        cut = [Shard(len(value.shape) - 1)] if value.ndim and sum(value.shape) % 2 else [Replicate()]
        return zeros(*value.shape, dtype=value.dtype, device_mesh=mesh, placements=cut)
    if torch.is_tensor(value):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {k: target_like(v, mesh) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(target_like(v, mesh) for v in value)
    return value


def resharded(rank, world, folder, expected):
    """Its resharder fills a target of another mesh. It restores tensors alone."""
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world,))
    into = {}
    for name in items_of(folder):
        value = torch.load(os.path.join(folder, f"{name}_0.pt"), weights_only=True)
        if any(torch.is_tensor(v) for v in flatten(value).values()) and isinstance(value, dict):
            into[name] = target_like(value, mesh)
    loaded = manager(True).load(folder, into=into, strict=True)
    names = {n for n in expected["names"] if n.split(".")[0] in into}
    compare(whole(loaded), {"tensors": [t for t in expected["tensors"] if t["key"] in names]}, f"{folder} on {world} ranks")


def layouts():
    n = 0
    for case in CASES:
        expected = json.loads((SAMPLES / case / "expected.json").read_text())
        expected["names"] = [t["key"] for t in expected["tensors"]]
        for world, layout in ((1, ["--world-size", 1]), (2, ["--world-size", 2]), (3, ["--world-size", 3]),
                              (4, ["--mesh", "dp=2,tp=2", "--placements", "*.weight=shard(0),shard(0)"])):
            if world != 3 and case.endswith("uneven_w4"):
                continue
            with tempfile.TemporaryDirectory() as d:
                out = os.path.join(d, "out")
                tool("ckpt-convert", SAMPLES / case / "checkpoint", out, "--to", "torch-checkpointing", "--verify", *layout)
                spawn(as_it_is, world, out, expected)
                spawn(resharded, 5 - world, out, expected)
                n += 2
    done(n, "loads by torch_checkpointing's own loader")


def resume(rank, world, source, ours, report):
    """Three more steps of FSDP2 and AdamW, from PyTorch's DCP or by torch_checkpointing's loader from what we made of it."""
    from dcp_cases import build, restore, state
    m, opt, _ = build(VISIBLE, world, "fsdp")
    if ours:
        from torch.distributed.checkpoint.state_dict import set_state_dict
        live = state(m, opt)
        with torch.no_grad():
            for value in flatten(live).values():
                if torch.is_tensor(value):
                    value.zero_()
        loaded = manager(True).load(source, into=live)
        set_state_dict(m, opt, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
    else:
        restore(m, opt, source)
    train(m, opt, dict(VISIBLE, seed=77), 3, rank)
    full = flatten(state(m, opt, full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save({k: sha256(v) for k, v in full.items() if torch.is_tensor(v)}, report)


def resumes():
    source = SAMPLES / "dcp/fsdp2_w4/checkpoint"
    with tempfile.TemporaryDirectory() as d:
        ours, reports = os.path.join(d, "ours"), []
        tool("ckpt-convert", source, ours, "--to", "torch-checkpointing", "--world-size", 3)
        for path, is_ours in ((ours, True), (str(source), False)):
            report = os.path.join(d, "report.pt")
            spawn(resume, 2, path, is_ours, report)
            reports.append(torch.load(report))
    bad = [k for k in reports[0] if reports[0][k] != reports[1].get(k)]
    if bad or set(reports[0]) != set(reports[1]):
        raise SystemExit(f"{len(bad)} tensors differ after 3 steps, first {bad[:1]}")
    done(len(reports[0]), "tensors bit-equal after 3 AdamW steps resumed by torch_checkpointing's loader")


if __name__ == "__main__":
    layouts()
    resumes()
