"""FairScale itself takes what we wrote: consolidate_shard_weights equals its consolidation of the source, local_metadata_dict of a
model wrapped at the new world size is the metadata in our files, and each rank's model and optimizer load and hold the shards that
FairScale would have cut, from rank files and through get_shard_from_optim_state_dict from the gathered file."""
import pathlib, sys, tempfile
from support import SAMPLES, done, tool
import torch
from common import VISIBLE, spawn

try:
    from fairscale.nn.data_parallel import FullyShardedDataParallel as FSDP
    HAVE = True
except ImportError as e:
    HAVE, WHY = False, e

CFG = dict(VISIBLE, groups=False)
CASES = [("nested_flat_w2", True, True), ("single_flat_w4", False, True), ("nested_unflat_w2", True, False)]


def load(folder):
    n = len(list(folder.glob("rank_*.pt")))
    return [torch.load(folder / f"rank_{r}.pt", weights_only=True) for r in range(n)]


def buffers(rank):
    """(position in the metadata, backing name, its key in the weights, its description), in metadata order."""
    for i, unit in enumerate(rank["meta"]["param_metadata"]):
        for name, info in unit["params"].items():
            yield i, name, (unit["fsdp_path"] + "." if unit["fsdp_path"] else "") + name, info


def whole_state(ranks):
    """{key of the weights: {leaf: flat tensor without padding}}: the ranks' optimizer shards end to end."""
    keys = [k for k in ranks[0]["weights"] if k in {key for *_, key, _ in buffers(ranks[0])}]  # the optimizer's order
    where = {key: (i, name) for i, name, key, _ in buffers(ranks[0])}
    out = {}
    for k, key in enumerate(keys):
        i, name = where[key]
        out[key] = {}
        for leaf in ("exp_avg", "exp_avg_sq"):
            parts = []
            for r in ranks:
                t, pad = r["optim"]["state"][k][leaf], r["meta"]["param_metadata"][i]["params"][name]["padding"]
                parts.append(t.reshape(-1)[:t.numel() - pad])
            out[key][leaf] = torch.cat(parts)
    return out


def shard(flat, rank, world):
    chunk = -(-flat.numel() // world)
    part = flat[rank * chunk:(rank + 1) * chunk]
    return torch.cat([part, part.new_zeros(chunk - part.numel())])


def check_state(got, want, rank, world, what):
    for leaf, flat in want.items():
        cut = shard(flat, rank, world) if world > 1 else flat
        assert torch.equal(got[leaf].reshape(-1), cut), f"{what}: {leaf} on rank {rank} of {world}"
    assert float(got["step"]) == 2.0, f"{what}: step {got['step']}"


def in_ranks(rank, world, folder, gathered, nested, flat, want):
    from fairscale_cases import fsdp_units, wrap
    model = wrap(CFG, nested, flat)
    model._lazy_init()
    for unit in fsdp_units(model):  # inner ones do this in their first forward
        for p in unit.params:
            unit._init_param_attributes(p)
    files = pathlib.Path(folder)
    mine = torch.load(files / f"rank_{rank}.pt", weights_only=True)
    assert model.local_metadata_dict() == mine["meta"], f"metadata of rank {rank} of {world}: {mine['meta']}"
    model.load_local_state_dict(mine["weights"])
    for key, value in model.local_state_dict().items():
        assert torch.equal(value, mine["weights"][key]), key
    opt = torch.optim.Adam(model.parameters(), lr=CFG["lr"], foreach=False)
    opt.load_state_dict(mine["optim"])
    state = opt.state_dict()["state"]
    assert len(state) == len(want)
    for k, key in enumerate(want):
        check_state(state[k], want[key], rank, world, f"{folder}: {key}")
    if gathered:
        cut = model.get_shard_from_optim_state_dict(torch.load(gathered, weights_only=True))
        opt.load_state_dict(cut)
        for k, key in enumerate(want):
            check_state(opt.state_dict()["state"][k], want[key], rank, world, f"{gathered}: {key}")


def main():
    if not HAVE:
        print(f"skipped: fairscale is not installed ({WHY})")
        sys.exit(77)
    n = loaded = 0
    for name, nested, flat in CASES:
        case = SAMPLES / "fairscale" / name
        source = load(case / "checkpoint")
        want, golden = whole_state(source), torch.load(case / "golden" / "consolidated.pt", weights_only=True)
        for world in (1, 2, 3, 5):
            with tempfile.TemporaryDirectory() as d:
                out, gathered = pathlib.Path(d) / "out", None
                tool("ckpt-reshard", case / "checkpoint", out, "--world-size", world)
                ranks = load(out)
                assert len(ranks) == world
                if flat or world > 1:  # its consolidation of one rank without flattening asserts
                    got = FSDP.consolidate_shard_weights([r["weights"] for r in ranks], [r["meta"] for r in ranks])
                    assert set(got) == set(golden), name
                    assert all(torch.equal(got[k], golden[k]) for k in golden), name
                    n += 1
                if name.startswith("single") and world > 1:  # any other format in between: one wrapper, one gathered file
                    tool("ckpt-convert", case / "checkpoint", pathlib.Path(d) / "x.pt")
                    tool("ckpt-convert", pathlib.Path(d) / "x.pt", pathlib.Path(d) / "y", "--to", "fairscale-fsdp", "--world-size", world)
                    gathered = str(pathlib.Path(d) / "y" / "optim.pt")
                if world in (2, 3):
                    spawn(in_ranks, world, str(out), gathered, nested, flat, want)
                    loaded += 1
    done(n, "consolidations by FairScale equal its own of the source")
    done(loaded, "world sizes whose models and optimizers FairScale loaded")


if __name__ == "__main__":
    main()
