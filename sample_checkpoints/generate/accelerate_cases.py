"""Samples in the layout of accelerate's FSDP1 with LOCAL_STATE_DICT: torch 2.13 on CPU / gloo.

    python accelerate_cases.py [root]
The model is one torch.save file per rank, its optimizer a DCP folder keyed by FQN, as accelerate.utils.fsdp_utils writes
them (save_fsdp_model, save_fsdp_optimizer); everything is written by PyTorch. One training run fixes the state.
"""
import os, sys
import torch
from common import *
from fsdp1_cases import collect, flat_layout, kind, w_train, wrap


def w_save(rank, world, cfg, orig, golden_path, case):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    golden = torch.load(golden_path, weights_only=False)
    m, opt = wrap(cfg, world, orig, None, golden)
    m(torch.zeros(1, dtype=torch.int64))  # first forward finishes lazy initialisation
    m.module.tokens_seen.copy_(golden["model"]["tokens_seen"])
    with inside(case):
        os.makedirs("checkpoint", exist_ok=True)
        with kind(m, "LOCAL"):
            torch.save(m.state_dict(), "checkpoint/pytorch_model_fsdp_rank%d.bin" % rank)
            state = FSDP.optim_state_dict(m, opt)
        with inside("checkpoint"):  # .metadata records the path as given
            dcp.save({"optimizer": state}, storage_writer=dcp.FileSystemWriter("optimizer_0"), planner=dcp.DefaultSavePlanner())
    if rank == 0:
        json.dump(flat_layout(m), open(os.path.join(case, "layout.json"), "w"))
    dist.barrier()


def run(root, name, cfg, world, orig, golden):
    case = fresh_case(root, "accelerate", name)
    spawn(w_save, world, cfg, orig, golden, case)
    layout = json.load(open(os.path.join(case, "layout.json")))
    os.remove(os.path.join(case, "layout.json"))
    full = torch.load(golden, weights_only=False)
    flat = flatten({"model": full["model"], "optimizer": full["optim"]})
    named = [tensor_entry(k, v) for k, v in flat.items() if torch.is_tensor(v)]
    # PyTorch's own loader agrees about the optimizer
    stored = {k: v for k, v in flatten(load_dcp(case + "/checkpoint/optimizer_0")).items() if torch.is_tensor(v)}
    assert {k: tensor_entry(k, v) for k, v in stored.items()} == {e["key"]: e for e in named if e["key"].startswith("optimizer.")}
    write_expected(case, "torch-zip-shardedtensor", "torch", torch.__version__.split("+")[0], {}, world, None,
                   notes="FSDP1 LOCAL state dict in accelerate's layout, use_orig_params=%s: one torch.save file per rank beside a DCP folder "
                         "with FSDP.optim_state_dict; the files do not name the parameters inside a flat parameter: flat_params gives "
                         "FSDP1's record, unflattened the FULL state dict" % orig,
                   flat_params={k: {a: v[a] for a in ("fqns", "shapes", "numels", "unpadded_numel")} for k, v in layout.items()},
                   unflattened=named)


def main(root):
    cfg = dict(VISIBLE, groups=False)
    with tempfile.TemporaryDirectory() as d:
        golden = os.path.join(d, "golden.pt")
        spawn(w_train, 2, cfg, True, golden, 3)
        run(root, "fsdp1_local_orig_w2", cfg, 2, True, golden)
        run(root, "fsdp1_local_flat_w2", cfg, 2, False, golden)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT))
