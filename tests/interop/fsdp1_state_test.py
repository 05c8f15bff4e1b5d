"""Both directions with FSDP1: checkpoints that it wrote on 2, 3 and 4 processes (ShardedTensors, DTensors) are resumed by the C++ runtime on
2 and 4, and what that wrote by FSDP1, with flat parameters and with original ones: the same bit by bit once it is loaded (weights, moments,
steps, options of groups); the next 3 AdamW steps agree with the writer's own to 1e-6. And LOCAL state dicts, which hold flat parameters."""
import os, subprocess, sys, tempfile, warnings
from support import SAMPLES, done
import torch
from common import VISIBLE, spawn, train
from fsdp_state_test import PEER, content_of, cpp_resumes, require_close, require_equal

warnings.filterwarnings("ignore")
CONFIG = dict(VISIBLE, groups=False)


def restore(m, opt, source):
    """As DCP documents it, but for what its planner does with ShardedTensors within ShardedTensors (there are none): on a rank that holds
    nothing of a ShardedTensor it then asks for the groups as one value, which no checkpoint has, and FSDP1 cannot load even its own."""
    from dcp_cases import dcp, state
    from torch.distributed.checkpoint import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict import set_state_dict
    sd = state(m, opt)
    dcp.load(sd, checkpoint_id=source, planner=DefaultLoadPlanner(flatten_sharded_tensors=False))
    set_state_dict(m, opt, model_state_dict=sd["model"], optim_state_dict=sd["optim"])


def resume(rank, world, jobs, seed):
    """jobs: (checkpoint, use_orig_params, mesh, folder): what is there once it is loaded, and after 3 steps. Both are SHARDED state dicts:
    FSDP1's gather of FULL ones uses one buffer twice on CPUs with original parameters, and what it then calls exp_avg is exp_avg_sq."""
    from dcp_cases import dcp
    from fsdp1_cases import collect, wrap
    for source, orig, mesh, folder in jobs:
        m, opt = wrap(CONFIG, world, orig, mesh)
        restore(m, opt, source)
        dcp.save(collect(m, opt, "SHARDED"), checkpoint_id=os.path.join(folder, "loaded"))
        train(m, opt, dict(CONFIG, seed=seed), 3, rank)
        dcp.save(collect(m, opt, "SHARDED"), checkpoint_id=os.path.join(folder, "trained"))


def both_ways(world, source, seed, mesh, cases, d):
    """mesh: of FSDP1 when it resumes its own; cases: (original parameters, mesh, what) of what it makes of ours."""
    first, second, third, back = (os.path.join(d, name) for name in ("first", "second", "third", "back"))
    cpp_resumes(world, "fsdp1", source, seed, first, second)
    jobs = [(source, False, mesh, d + "/theirs")] + [(first, orig, mesh, f"{d}/{n}") for n, (orig, mesh, _) in enumerate(cases)]
    spawn(resume, world, jobs, seed)
    cpp_resumes(world, "fsdp1", d + "/theirs/loaded", seed, third)
    cpp_resumes(world, "fsdp1", d + "/theirs/trained", seed, back, steps=0)
    of = lambda path: content_of(path, d)
    equal = require_equal(f"FSDP1's, loaded here on {world}", of(back), of(d + "/theirs/trained"))
    close = require_close(f"FSDP1's of 3, resumed here on {world}", of(first), of(third))
    for (before, _, _, folder), after, what in zip(jobs, (third, *[second] * len(cases)), ("FSDP1's", *(case[2] for case in cases))):
        equal += require_equal(f"{what}, loaded there on {world}", of(folder + "/loaded"), of(before))
        close += require_close(f"{what}, on {world}", of(after), of(folder + "/trained"))
    return equal, close


def local(rank, world, there, back, report):
    """A model's LOCAL state dict to `there`; where `back` is, that one into a model of other values. Its whole values to `report`."""
    from dcp_cases import dcp
    from fsdp1_cases import kind, wrap
    m, _ = wrap(dict(CONFIG, seed=5) if back else CONFIG, world, False)
    m.module.tokens_seen.fill_(3 if back else 5)
    with kind(m, "LOCAL"):
        state = {"model": m.state_dict()}
        if back:
            dcp.load(state, checkpoint_id=back)
            m.load_state_dict(state["model"])
        else:
            dcp.save(state, checkpoint_id=there)
    with kind(m, "FULL"):
        whole = m.state_dict()
    if rank == 0:
        torch.save(whole, report)


def local_both_ways(theirs, ours, again, d):
    """FSDP1's of `theirs` ranks through the C++ runtime on `ours` into FSDP1 on `again`."""
    there, back, wanted, found = (os.path.join(d, name) for name in ("there", "back", "wanted.pt", "found.pt"))
    spawn(local, theirs, there, None, wanted)
    subprocess.run([PEER, "[.peer-local]"], check=True, stdout=subprocess.DEVNULL, timeout=120,
                   env=dict(os.environ, TESSERA_PEER=f"{there} {ours} {back}"))
    spawn(local, again, None, back, found)
    wanted, found = torch.load(wanted), torch.load(found)
    if set(wanted) != set(found) or not all(torch.equal(wanted[k], found[k]) for k in wanted):
        raise SystemExit(f"LOCAL state dict of {theirs} ranks through {ours} to {again}: differs")
    flat = content_of(back, d)
    if set(flat) != set(content_of(there, d)) or sum(k.endswith("_flat_param") for k in flat) != 3:
        raise SystemExit(f"LOCAL state dict of {ours} ranks: {sorted(flat)}")
    return len(wanted)


if __name__ == "__main__":
    source, equal, close = str(SAMPLES / "dcp/fsdp1_sharded_flat_w3/checkpoint"), 0, 0
    for world, mesh in ((2, None), (4, (4,))):
        cases = tuple((orig, dims, f"ours, {'original' if orig else 'flat'} parameters, {'DTensors' if dims else 'ShardedTensors'}")
                      for dims in (None, (world,)) for orig in (False, True))
        with tempfile.TemporaryDirectory() as d:
            counts = both_ways(world, source, 77, mesh, cases, d)
            equal, close = equal + counts[0], close + counts[1]
    done(equal, "tensors and values equal once loaded")
    done(close, "tensors within 1e-6 after 3 resumed AdamW steps, between FSDP1 and the C++ runtime in both directions, on 2 and 4 ranks")
    locals_ = 0
    for ranks in ((2, 3, 3), (3, 2, 2)):
        with tempfile.TemporaryDirectory() as d:
            locals_ += local_both_ways(*ranks, d)
    done(locals_, "tensors of LOCAL state dicts equal after a way through the C++ runtime")
