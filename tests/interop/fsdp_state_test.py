"""Both directions with real PyTorch: a checkpoint that FSDP2 wrote on 2 or 4 processes is resumed by the C++ runtime, and one of the C++
runtime by FSDP2; the next 3 AdamW steps agree with the writer's own to 1e-6, flat and per parameter."""
import os, subprocess, sys, tempfile
from support import SAMPLES, done
import torch
from common import VISIBLE, flatten, spawn, train

PEER = os.environ["TESSERA_STATE_TESTS"]


def resume(rank, world, sources, seed, folder):
    from dcp_cases import build, dcp, restore, state
    for number, source in enumerate(sources):
        m, opt, _ = build(VISIBLE, world, "fsdp")
        restore(m, opt, source)
        if number == 0:
            dcp.save(state(m, opt), checkpoint_id=os.path.join(folder, "written"))
        train(m, opt, dict(VISIBLE, seed=seed), 3, rank)
        full = flatten(state(m, opt, full_state_dict=True, cpu_offload=True))
        if rank == 0:
            torch.save({k: v for k, v in full.items() if torch.is_tensor(v)}, os.path.join(folder, f"report_{number}.pt"))


def python_resumes(world, sources, seed, folder):
    spawn(resume, world, sources, seed, folder)
    return [torch.load(os.path.join(folder, f"report_{number}.pt")) for number in range(len(sources))]


def cpp_resumes(world, layout, source, seed, *destinations):
    subprocess.run([PEER, "[.peer]"], check=True, stdout=subprocess.DEVNULL,
                   env=dict(os.environ, TESSERA_PEER=" ".join(map(str, (source, world, layout, seed, 3, *destinations)))))


def tensors_of(path, folder):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    flat = os.path.join(folder, os.path.basename(path) + ".pt")
    dcp_to_torch_save(path, flat)
    return {k: v for k, v in flatten(torch.load(flat, weights_only=False)).items() if torch.is_tensor(v)}


def compare(what, a, b):
    if set(a) != set(b):
        raise SystemExit(f"{what}: names differ: {sorted(set(a) ^ set(b))[:3]}")
    for k in a:
        if a[k].shape != b[k].shape or a[k].dtype != b[k].dtype or (a[k].double() - b[k].double()).abs().max() > 1e-6:
            raise SystemExit(f"{what}: {k} differs")
    return len(a)


if __name__ == "__main__":
    source, compared = str(SAMPLES / "dcp/fsdp2_w4/checkpoint"), 0
    for world, layout in ((2, "flat"), (2, "rows"), (4, "flat")):
        with tempfile.TemporaryDirectory() as d:
            first, second, third, written = (os.path.join(d, name) for name in ("first", "second", "third", "written"))
            cpp_resumes(world, layout, source, 77, first, second)
            theirs, ours = python_resumes(world, (source, first), 77, d)
            cpp_resumes(world, layout, written, 77, third)
            for path, writers in ((first, 4), (third, world)):
                compared += compare(f"PyTorch's of {writers}, resumed here on {world}, {layout}", tensors_of(path, d), theirs)
            compared += compare(f"ours on {world}, {layout}, resumed by PyTorch", tensors_of(second, d), ours)
    done(compared, "tensors within 1e-6 after 3 resumed AdamW steps, in both directions, on 2 and 4 ranks")
