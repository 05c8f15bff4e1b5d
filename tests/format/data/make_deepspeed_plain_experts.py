"""Makes families/deepspeed_moe_plain: two layers of four experts, shared out by two ranks, trained two steps by an engine without ZeRO under bf16
(DeepSpeed 0.19.8, PyTorch 2.13, CPU, Gloo). expected.json: what the engines hold, each parameter by its name in the whole model: weights as the
module has them, masters and moments as the optimizers have them.

    python make_deepspeed_plain_experts.py
"""
import hashlib, importlib, json, os, re, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../sample_checkpoints/generate"))
from common import *

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "families", "deepspeed_moe_plain")
RANKS = 2


def model():
    from deepspeed.moe.layer import MoE

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            expert = lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))
            self.moe = nn.ModuleList([MoE(hidden_size=4, expert=expert(), num_experts=4, ep_size=RANKS, k=1, min_capacity=8)
                                      for _ in range(2)])
            self.head = nn.Linear(4, 7, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.moe:
                x = x + layer(x)[0]
            return self.head(x)

    torch.manual_seed(3)
    return Model()


def train(rank, world, folder):
    importlib.import_module("deepspeed.comm.torch")  # which would compile a helper for ranks of one machine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    made = model()
    groups = split({"params": list(made.parameters()), "name": "parameters"})
    engine = deepspeed.initialize(model=made, optimizer=torch.optim.AdamW(groups, lr=0.01, foreach=False), config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}, "bf16": {"enabled": True}})[0]
    for step in range(2):
        torch.manual_seed(7 + rank + 10 * step)
        tokens = torch.randint(0, 7, (4, 5))
        engine.backward(nn.functional.cross_entropy(engine(tokens).float().reshape(-1, 7), tokens.reshape(-1)))
        engine.step()
    engine.save_checkpoint(folder, tag="global_step2")
    names = {p: re.sub(r"(deepspeed_experts\.)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 2 * rank}", n)
             for n, p in engine.module.named_parameters()}
    held = {"model." + n: p.detach().clone() for p, n in names.items()}
    wrapped = engine.optimizer
    for weights, masters in zip(wrapped.fp16_groups, wrapped.fp32_groups):
        for weight, master in zip(weights, masters):
            held[f"optim.state.{names[weight]}.fp32"] = master.detach().clone()
            for leaf, value in wrapped.optimizer.state[master].items():
                held[f"optim.state.{names[weight]}.{leaf}"] = value
    torch.save(held, folder + f".{rank}")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    folder = OUT + "/ckpt"
    spawn(train, RANKS, folder)
    held = {}
    for rank in reversed(range(RANKS)):  # what is no expert's: rank 0's
        held.update(torch.load(f"{folder}.{rank}"))
        os.remove(f"{folder}.{rank}")
    for name in os.listdir(folder):
        if name.endswith(".py"):
            os.remove(os.path.join(folder, name))
    with open(OUT + "/expected.json", "w") as f:
        json.dump({"tensors": [{"key": k, "dtype": str(t.dtype).replace("torch.", ""), "shape": list(t.shape),
                                "sha256": hashlib.sha256(tensor_bytes(t)).hexdigest()} for k, t in sorted(held.items())]}, f, indent=0)


if __name__ == "__main__":
    main()
