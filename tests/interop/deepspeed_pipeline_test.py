"""DeepSpeed's own step from what we write of a pipeline: two stages, over as many data-parallel ranks and over one.

What four ranks hold after they loaded our files and took a step is what they hold from DeepSpeed's own. Run in tests/soak/run, as
it starts engines; skipped where deepspeed cannot be imported.
"""
import os, shutil, sys, tempfile

import deepspeed_test as support

HERE = os.path.dirname(os.path.abspath(__file__))
CASE = os.path.join(HERE, "..", "format", "data", "families", "deepspeed_pipeline", "ckpt")
CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1},
          "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": True}}


def layers():
    import torch
    from torch import nn
    from deepspeed.pipe import LayerSpec

    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(11, 6)

        def forward(self, tokens):
            return self.word_embeddings(tokens)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.input_layernorm(x))))

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.final_linear = nn.Linear(6, 11, bias=False)

        def forward(self, x):
            return self.final_linear(x)

    return [LayerSpec(Embedding), LayerSpec(Layer), LayerSpec(Layer), LayerSpec(Head)]


def worker(rank, world, path, out):
    support.without_compiling()
    import deepspeed, torch
    from deepspeed.pipe import PipelineModule
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    torch.manual_seed(99)
    loss = lambda x, y: torch.nn.functional.cross_entropy(x.float().reshape(-1, 11), y.reshape(-1))
    made = PipelineModule(layers(), num_stages=2, loss_fn=loss, partition_method="uniform")
    optimizer = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=0.01, foreach=False)
    engine, *_ = deepspeed.initialize(model=made, optimizer=optimizer, config=CONFIG)
    assert engine.load_checkpoint(path)[0] is not None
    engine.save_checkpoint(out, tag="loaded")
    before = [p.detach().clone() for p in engine.module.parameters()]
    generator = torch.Generator().manual_seed(7)
    batches = [(torch.randint(0, 11, (4, 5), generator=generator), torch.randint(0, 11, (4, 5), generator=generator))
               for _ in range(2)]
    engine.train_batch(data_iter=iter(batches))
    assert not all(torch.equal(a, b) for a, b in zip(before, engine.module.parameters())), "the step changed nothing"
    engine.save_checkpoint(out, tag="stepped")


def main():
    support.find_python()
    sys.path.insert(0, os.path.join(support.SAMPLES, "generate"))
    import common
    work = tempfile.mkdtemp()
    try:
        stored, wanted = {}, support.hashes(CASE)
        for name, source, ranks in (("theirs", CASE, 2), ("ours", None, 2), ("fewer", None, 1)):
            path = source or os.path.join(work, name)
            if not source:
                support.tool("ckpt-reshard", CASE, path, "--world-size", ranks, "--verify")
            out = os.path.join(work, name + ".saved")
            common.spawn(worker, 2 * ranks, path, out)
            stored[name] = {tag: support.hashes(os.path.join(out, tag)) for tag in ("loaded", "stepped")}
            assert stored[name]["loaded"] == wanted, [k for k in wanted if stored[name]["loaded"].get(k) != wanted[k]][:5]
            print("ok   two stages of", ranks, "ranks load", "DeepSpeed's own files" if source else "what was written", "and take a step")
        assert stored["ours"] == stored["theirs"]
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
