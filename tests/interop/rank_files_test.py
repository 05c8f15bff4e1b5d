"""PyTorch loads the rank files we write: DTensors with weights_only=True on as many processes, which gather to the oracle's tensors;
local state dicts into FSDP1 modules of another number of ranks than the one that saved them, model and optimizer."""
import os, pathlib, sys, tempfile
from support import SAMPLES, compare, compare_values, done, samples, tool
import torch
from common import VISIBLE, flatten, spawn

DATA = pathlib.Path(__file__).resolve().parents[1] / "format" / "data"


def gathered(rank, world, folder, expected):
    from torch.distributed.tensor import DTensor
    state = torch.load(os.path.join(folder, f"rank{rank}.pt"), weights_only=True)
    flat = flatten(state)
    sharded = sum(isinstance(v, DTensor) for v in flat.values())
    full = {k: (v.full_tensor() if isinstance(v, DTensor) else v) for k, v in flat.items()}
    assert sharded == 39, f"{sharded} DTensors: 13 parameters with two moments each were expected"
    compare(full, expected, f"{folder} on rank {rank}")
    compare_values(full, expected, f"{folder} on rank {rank}")


def dtensors():
    import json
    n = 0
    for case in ("dcp/fsdp2_w4", "torchsave/fsdp1_sharded_rankfiles_w2"):
        expected = json.loads((SAMPLES / case / "expected.json").read_text())
        for w in (1, 3):
            with tempfile.TemporaryDirectory() as d:
                out = os.path.join(d, "out")
                tool("ckpt-convert", SAMPLES / case / "checkpoint", out, "--to", "torch-rank-files", "--world-size", w)
                spawn(gathered, w, out, expected)
                n += 1
    done(n, "sets of rank files loaded with weights_only=True and gathered")


def into_fsdp1(rank, world, folder, orig, expected):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from fsdp1_cases import collect, kind, train, wrap
    cfg = dict(VISIBLE, groups=False)
    m, opt = wrap(cfg, world, orig)
    train(m, opt, cfg, 1, rank)  # the optimizer gets the state that load_state_dict fills
    state = torch.load(os.path.join(folder, f"rank{rank}.pt"), weights_only=False)
    with kind(m, "LOCAL"):
        m.load_state_dict(state["model"], strict=not orig)  # PyTorch refuses the flat parameters of its own files there
    opt.load_state_dict(state["optim"])
    full = flatten(collect(m, opt, "FULL"))
    if rank == 0:
        compare({k: v for k, v in full.items() if torch.is_tensor(v)}, dict(expected, tensors=expected["unflattened"]), folder)


def local():
    import json
    n = 0
    for case, orig in (("torchsave/fsdp1_local_rankfiles_w3", False), ("torchsave/fsdp1_local_orig_rankfiles_w2", True)):
        expected = json.loads((SAMPLES / case / "expected.json").read_text())
        for w in (2, 4):
            with tempfile.TemporaryDirectory() as d:
                out = os.path.join(d, "out")
                tool("ckpt-reshard", SAMPLES / case / "checkpoint", out, "--world-size", w, "--flat-layout", SAMPLES / case / "expected.json")
                spawn(into_fsdp1, w, out, orig, expected)
                n += 1
    done(n, "local state dicts loaded into FSDP1 modules at another number of ranks")


def into_verl(rank, world, folder, expected):
    sys.path.insert(0, str(DATA))
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from fsdp1_cases import collect, kind, wrap
    from make_verl import CFG
    m, opt = wrap(CFG, world, False, (world,))
    part = lambda name: torch.load(os.path.join(folder, f"{name}_world_size_{world}_rank_{rank}.pt"), weights_only=True)
    with kind(m, "SHARDED"):
        m.load_state_dict(part("model"))
        opt.load_state_dict(FSDP.optim_state_dict_to_load(m, opt, part("optim")))
    full = flatten(collect(m, opt, "FULL"))
    if rank == 0:
        compare({k: v for k, v in full.items() if torch.is_tensor(v)}, expected, folder)


def verl():
    """FSDP1's flat optimizer state, as verl saves it, goes to other numbers of ranks by the record of the flat parameters."""
    import json
    n = 0
    for case in ("fsdp1_w2", "fsdp1_w3"):
        expected = json.loads((DATA / "verl" / case / "expected.json").read_text())
        for w in (2, 4):
            with tempfile.TemporaryDirectory() as d:
                out = os.path.join(d, "out")
                tool("ckpt-reshard", DATA / "verl" / case / "checkpoint", out, "--world-size", w, "--rank-state", "drop",
                     "--flat-layout", DATA / "verl" / case / "expected.json")
                spawn(into_verl, w, out, expected)
                n += 1
    done(n, "verl checkpoints loaded into FSDP1 at another number of ranks")


def own_weights():
    """Ranks that trained for themselves: PyTorch loads what rank 0 had, and no rank's is passed off as all ranks'."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with tempfile.TemporaryDirectory() as d:
        source, out = os.path.join(d, "source"), os.path.join(d, "out")
        os.mkdir(source)
        saved = []
        for rank in range(2):
            torch.manual_seed(rank)
            own = torch.nn.Linear(3, 2)
            steps = torch.optim.AdamW(own.parameters())
            own(torch.randn(4, 3)).pow(2).sum().backward()
            steps.step()
            saved.append({"model": own.state_dict(), "optimizer": steps.state_dict()})
            torch.save(saved[-1], os.path.join(source, f"rank{rank}.pt"))
        tool("ckpt-reshard", source, out, "--world-size", 3, status=5)
        tool("ckpt-reshard", source, out, "--world-size", 3, "--rank-state", "rank0")
        for rank in range(3):
            state = torch.load(os.path.join(out, f"rank{rank}.pt"), weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            for a, b in ((model.state_dict(), saved[0]["model"]),
                         (flatten(optimizer.state_dict()), flatten(saved[0]["optimizer"]))):
                assert a.keys() == b.keys() and all(
                    torch.equal(a[k], b[k]) if torch.is_tensor(a[k]) else a[k] == b[k] for k in a), rank
    done(3, "ranks loaded what rank 0 of others had trained")


if __name__ == "__main__":
    dtensors()
    local()
    verl()
    own_weights()
