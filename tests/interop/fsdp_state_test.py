"""Both directions with real PyTorch: a checkpoint that FSDP2 wrote on 2 or 4 processes is resumed by the C++ runtime, and one of the C++
runtime by FSDP2: the same bit by bit once it is loaded (weights, moments, steps, options of groups); the next 3 AdamW steps agree with the
writer's own to 1e-6, flat and per parameter."""
import os, subprocess, sys, tempfile
from support import SAMPLES, done
import torch
from common import VISIBLE, flatten, spawn, train

PEER = os.environ["TESSERA_STATE_TESTS"]


def resume(rank, world, sources, seed, folder):
    from dcp_cases import build, dcp, restore, state

    def report(name):
        full = flatten(state(m, opt, full_state_dict=True, cpu_offload=True))
        if rank == 0:
            torch.save(full, os.path.join(folder, name))

    for number, source in enumerate(sources):
        m, opt, _ = build(VISIBLE, world, "fsdp")
        restore(m, opt, source)
        if number == 0:
            dcp.save(state(m, opt), checkpoint_id=os.path.join(folder, "written"))
        report(f"loaded_{number}.pt")
        train(m, opt, dict(VISIBLE, seed=seed), 3, rank)
        report(f"trained_{number}.pt")


def python_resumes(world, sources, seed, folder):
    """Of each source, what is there once it is loaded, and after 3 steps."""
    spawn(resume, world, sources, seed, folder)
    return [[torch.load(os.path.join(folder, f"{when}_{number}.pt")) for when in ("loaded", "trained")] for number in range(len(sources))]


def cpp_resumes(world, layout, source, seed, *destinations, steps=3):
    subprocess.run([PEER, "[.peer]"], check=True, stdout=subprocess.DEVNULL, timeout=120,
                   env=dict(os.environ, TESSERA_PEER=" ".join(map(str, (source, world, layout, seed, steps, *destinations)))))


def content_of(path, folder):
    """Tensors and values, by dotted name."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    flat = os.path.join(folder, os.path.basename(path) + ".pt")
    dcp_to_torch_save(path, flat)
    return flatten(torch.load(flat, weights_only=False))


def require_names(what, a, b):
    if set(a) != set(b):
        raise SystemExit(f"{what}: names differ: {sorted(set(a) ^ set(b))[:3]}")


def require_close(what, a, b):
    """Tensors alone, to 1e-6."""
    a, b = ({k: v for k, v in state.items() if torch.is_tensor(v)} for state in (a, b))
    require_names(what, a, b)
    for k in a:
        if a[k].shape != b[k].shape or a[k].dtype != b[k].dtype or (a[k].double() - b[k].double()).abs().max() > 1e-6:
            raise SystemExit(f"{what}: {k} differs")
    return len(a)


def require_equal(what, found, wanted):
    """Tensors bit by bit, and values: the options of the optimizer's groups, whose members each side lists in an order of its own."""
    require_names(what, found, wanted)
    if not any(".param_groups." in k for k in wanted):
        raise SystemExit(f"{what}: no groups")
    for k in wanted:
        a, b = found[k], wanted[k]
        if torch.is_tensor(b):
            same = torch.is_tensor(a) and a.dtype == b.dtype and torch.equal(a, b)
        else:
            same = sorted(a) == sorted(b) if k.endswith(".params") else a == b
        if not same:
            raise SystemExit(f"{what}: {k} differs: {a}, expected {b}")
    return len(wanted)


if __name__ == "__main__":
    source, close, equal = str(SAMPLES / "dcp/fsdp2_w4/checkpoint"), 0, 0
    for world, layout in ((2, "flat"), (2, "rows"), (4, "flat")):
        with tempfile.TemporaryDirectory() as d:
            loaded, first, second, third, written = (os.path.join(d, name) for name in ("loaded", "first", "second", "third", "written"))
            cpp_resumes(world, layout, source, 77, loaded, steps=0)
            cpp_resumes(world, layout, source, 77, first, second)
            (their_load, theirs), (our_load, ours) = python_resumes(world, (source, first), 77, d)
            cpp_resumes(world, layout, written, 77, third)
            of = lambda path: content_of(path, d)
            wanted = of(source)
            for what, found, expected in (("PyTorch's of 4, loaded here", of(loaded), wanted), ("PyTorch's of 4, loaded there", their_load, wanted),
                                          ("ours, loaded by PyTorch", our_load, of(first))):
                equal += require_equal(f"{what} on {world}, {layout}", found, expected)
            for path, writers in ((first, 4), (third, world)):
                close += require_close(f"PyTorch's of {writers}, resumed here on {world}, {layout}", of(path), theirs)
            close += require_close(f"ours on {world}, {layout}, resumed by PyTorch", of(second), ours)
    done(equal, "tensors and values equal once loaded")
    done(close, "tensors within 1e-6 after 3 resumed AdamW steps, in both directions, on 2 and 4 ranks")
