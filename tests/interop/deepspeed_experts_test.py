"""DeepSpeed's own step from what we write of a mixture of experts: two experts' ranks, over as many data-parallel ranks and over twice as
many.

An engine loads each rank's experts by the numbers in names of files, and its part of their state by the rank. What two ranks hold
after they loaded our files and took a step is what they hold from DeepSpeed's own. Run in tests/soak/run, as it starts engines; skipped
where deepspeed cannot be imported.
"""
import os, shutil, sys, tempfile

import deepspeed_test as support

HERE = os.path.dirname(os.path.abspath(__file__))
CASE = os.path.join(HERE, "..", "format", "data", "families", "deepspeed_moe", "ckpt")
CONFIG = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True,
          "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": True}}


def model():
    import torch
    from torch import nn
    from deepspeed.moe.layer import MoE

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            expert = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
            self.moe = nn.ModuleList([MoE(hidden_size=6, expert=expert(), num_experts=4, ep_size=2, k=1, min_capacity=8)
                                      for _ in range(2)])
            self.head = nn.Linear(6, 11, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.moe:
                x = x + layer(x)[0]
            return self.head(x)

    torch.manual_seed(99)
    return Model()


def worker(rank, world, path, out):
    support.without_compiling()
    import deepspeed, torch
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    made = model()
    groups = split({"params": list(made.parameters()), "name": "parameters"})
    optimizer = torch.optim.AdamW(groups, lr=0.01, foreach=False)
    engine, *_ = deepspeed.initialize(model=made, optimizer=optimizer, config=CONFIG)
    assert engine.load_checkpoint(path)[0] is not None
    engine.save_checkpoint(out, tag="loaded")
    before = [p.detach().clone() for p in engine.module.parameters()]
    torch.manual_seed(7 + rank)
    tokens = torch.randint(0, 11, (4, 5))
    loss = torch.nn.functional.cross_entropy(engine(tokens).float().reshape(-1, 11), tokens.reshape(-1))
    engine.backward(loss)
    engine.step()
    same = [torch.equal(a, b) for a, b in zip(before, engine.module.parameters())]
    assert not all(same), "the step changed nothing"
    engine.save_checkpoint(out, tag="stepped")


def main():
    support.find_python()
    sys.path.insert(0, os.path.join(support.SAMPLES, "generate"))
    import common
    work = tempfile.mkdtemp()
    try:
        stored = {}
        for name, source, world in (("theirs", CASE, 2), ("ours", None, 2), ("more", None, 4)):
            path = source or os.path.join(work, name)
            if not source:
                support.tool("ckpt-reshard", CASE, path, "--world-size", world, "--verify")
            out = os.path.join(work, name + ".saved")
            common.spawn(worker, world, path, out)
            stored[name] = {tag: support.hashes(os.path.join(out, tag)) for tag in ("loaded", "stepped")}
            wanted = support.hashes(CASE)
            assert stored[name]["loaded"] == wanted, [k for k in wanted if stored[name]["loaded"].get(k) != wanted[k]][:5]
            print("ok  ", world, "ranks load", "DeepSpeed's own files" if source else "what was written", "and take a step")
        assert stored["ours"] == stored["theirs"]
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
