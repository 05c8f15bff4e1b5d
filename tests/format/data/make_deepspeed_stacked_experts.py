"""Makes families/deepspeed_autoep and families/deepspeed_autoep_zero3: a small Mixtral whose experts DeepSpeed itself stacked and shared out to
two ranks (AutoEP), trained two steps in bf16 by ZeRO-1 on two ranks and by ZeRO-3 on four (DeepSpeed 0.19.8, transformers 5.24, PyTorch 2.13, CPU,
Gloo). expected.json: what the engines say that they hold (safe_get_full_fp32_param and its like), experts joined by their ranks' order.

    python make_deepspeed_stacked_experts.py
"""
import hashlib, importlib, json, os, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../sample_checkpoints/generate"))
from common import *

FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "families")
SHARES = 2


def train(rank, world, stage, folder):
    importlib.import_module("deepspeed.comm.torch")  # which would compile a helper for ranks of one machine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    import deepspeed, transformers
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    from transformers.utils import output_capturing
    # This transformers asks its registry with one argument, this DeepSpeed with a default as well.
    output_capturing._CanRecordRegistry.get = lambda self, key, default=None: dict.get(
        self, key if isinstance(key, str) else str(key.__class__)) or ({} if default is None else default)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    torch.manual_seed(3)
    made = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=10, hidden_size=8, intermediate_size=6, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=16, tie_word_embeddings=False))
    engine = deepspeed.initialize(model=made, model_parameters=made.parameters(), config={
        "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "expert_parallel": {"enabled": True, "autoep_size": SHARES, "preset_model": "mixtral", "use_grouped_mm": False,
                            "disable_triton_grouped_mm": True}})[0]
    for step in range(2):
        torch.manual_seed(7 + rank + 10 * step)
        tokens = torch.randint(0, 10, (2, 6))
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()
    engine.save_checkpoint(folder, tag="global_step2")
    if stage < 3:  # linked before there was any
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    held = {}
    for name, parameter in engine.module.named_parameters():
        held["model." + name] = held[f"optim.state.{name}.fp32"] = safe_get_full_fp32_param(parameter).float().clone()
        for leaf in ("exp_avg", "exp_avg_sq"):
            held[f"optim.state.{name}.{leaf}"] = safe_get_full_optimizer_state(parameter, leaf).clone()
    torch.save(held, folder + f".{rank}")


def make(family, stage, world):
    out = os.path.join(FAMILIES, family)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    folder = out + "/ckpt"
    spawn(train, world, stage, folder)
    held = [torch.load(f"{folder}.{rank}") for rank in range(world)]
    for rank in range(world):
        os.remove(f"{folder}.{rank}")
        assert all(torch.equal(held[rank][key], held[rank % SHARES][key]) for key in held[rank]), "ranks of one share differ"
    whole = {key: torch.cat([each[key] for each in held[:SHARES]]) if ".experts." in key else held[0][key] for key in held[0]}
    for name in os.listdir(folder):
        if name.endswith(".py"):
            os.remove(os.path.join(folder, name))
    with open(out + "/expected.json", "w") as f:
        json.dump({"tensors": [{"key": k, "dtype": str(t.dtype).replace("torch.", ""), "shape": list(t.shape),
                                "sha256": hashlib.sha256(tensor_bytes(t)).hexdigest()} for k, t in sorted(whole.items())]}, f, indent=0)


if __name__ == "__main__":
    make("deepspeed_autoep", 1, 2)
    make("deepspeed_autoep_zero3", 3, 4)
