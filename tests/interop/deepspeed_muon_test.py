"""DeepSpeed's own step from what we write of its Muon: two ranks of stage 2 that load a checkpoint of stage 3 and of stage 2.

Stage 2 keeps Muon's momentum whole for every parameter that a rank's part touches: an engine that finds anything else loads it, and
fails in its first step. Run in tests/soak/run, as it starts engines; skipped where deepspeed cannot be imported.
"""
import os, shutil, sys, tempfile

import deepspeed_test as support

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "format", "data", "families")
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2, "reduce_scatter": True},
    "optimizer": {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.01, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "bf16": {"enabled": True},
}


def model():
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)

        def forward(self, x):
            return x + self.down(nn.functional.relu(self.up(self.norm(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layers = nn.Embedding(11, 6), nn.ModuleList([Layer(), Layer()])
            self.head = nn.Linear(6, 11, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    made = Model()
    for name, parameter in made.named_parameters():
        parameter.use_muon = parameter.ndim > 1 and "embed" not in name
    return made


def worker(rank, world, path):
    support.without_compiling()
    import deepspeed, torch
    made = model()
    engine, *_ = deepspeed.initialize(model=made, model_parameters=list(made.parameters()), config=CONFIG)
    assert engine.load_checkpoint(path)[0] is not None
    before = engine.module.head.weight.detach().clone()
    tokens = torch.randint(0, 11, (4, 5))
    loss = torch.nn.functional.cross_entropy(engine(tokens).float().reshape(-1, 11), tokens.reshape(-1))
    engine.backward(loss)
    engine.step()
    assert not torch.equal(before, engine.module.head.weight), "the step changed nothing"


def main():
    support.find_python()
    sys.path.insert(0, os.path.join(support.SAMPLES, "generate"))
    import common
    work = tempfile.mkdtemp()
    try:
        for case in ("deepspeed_muon_zero3", "deepspeed_muon_zero2"):
            path = os.path.join(work, case)
            support.tool("ckpt-reshard", os.path.join(CASES, case, "ckpt"), path, "--world-size", 2, "--zero-stage", 2, "--verify")
            common.spawn(worker, 2, path)
            print("ok   two ranks of stage 2 load", case, "and take a step")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
