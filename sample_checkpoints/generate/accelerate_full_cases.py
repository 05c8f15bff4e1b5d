"""FSDP2 with FULL_STATE_DICT, by accelerate's own savers: torch 2.13.0, accelerate 1.15.0, transformers 5.24.0, CPU / gloo.

    python accelerate_full_cases.py [root]
`pytorch_model_fsdp.bin` and `optimizer.bin`, the optimizer by names; the oracle is what get_state_dict gives of the live run.
"""
import os, sys, types
import torch
from common import *


def w_save(rank, world, case):
    import torch.distributed as dist
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.state import PartialState
    from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed
    PartialState(cpu=True)
    set_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=24, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                                         num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=False))
    model.model.embed_tokens.weight.requires_grad_(False)
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for n, p in named if "norm" not in n], "weight_decay": 0.1},
                                   {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0}], lr=0.01)
    draw = torch.Generator().manual_seed(5)
    for _ in range(2):
        ids = torch.randint(0, 24, (2, 6), generator=draw)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT", cpu_ram_efficient_loading=False)
    run = types.SimpleNamespace(process_index=rank, num_processes=world, is_main_process=rank == 0, is_fsdp2=True, wait_for_everyone=dist.barrier)
    with inside(case):
        save_fsdp_model(plugin, run, model, "checkpoint", 0)
        save_fsdp_optimizer(plugin, run, optimizer, model, "checkpoint", 0)
    weights, optim = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save({"model": weights, "optimizer": optim}, os.path.join(case, "live.pt"))
    dist.barrier()


def main(root):
    case = fresh_case(root, "accelerate", "fsdp2_full_w2")
    spawn(w_save, 2, case)
    live = os.path.join(case, "live.pt")
    state = torch.load(live, weights_only=False)
    os.remove(live)
    write_expected(case, "hf-trainer", "accelerate", "1.15.0", flatten(state), 2, None, torch_version=torch.__version__.split("+")[0],
                   notes="FSDP2 with FULL_STATE_DICT by accelerate's savers: both files of rank 0, the optimizer by names; a frozen embedding")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT))
