"""DeepSpeed's own step from what we write of a model of which a part trains, as an adapter does: saved with exclude_frozen_parameters, which is
how transformers' Trainer saves adapters, by an optimizer that keeps numbers in its state.

An engine takes frozen parameters that a checkpoint does not mention from the model at hand; of an empty list of them it misses each. What
two ranks hold after they loaded our files and took a step is what they hold from DeepSpeed's own. Run in tests/soak/run, as it starts
engines; skipped where deepspeed cannot be imported.
"""
import os, shutil, sys, tempfile

import deepspeed_test as support


def engine_of(stage, seed):
    support.without_compiling()
    import deepspeed, torch

    class Weighted(torch.optim.AdamW):
        """Sums a weight per step, as pytorch_optimizer's LaProp and simplified AdEMAMix do: a float that float32 does not hold."""

        def step(self, closure=None):
            super().step(closure)
            for state in self.state.values():
                state["weight_sum"] = 0.9 * state.get("weight_sum", 0.0) + 0.1

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 11))
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("0."))
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    optimizer = Weighted([p for p in model.parameters() if p.requires_grad], lr=0.01, foreach=False)
    return deepspeed.initialize(model=model, optimizer=optimizer, dist_init_required=False, config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000})[0]


def train(engine, steps, seed):
    import torch
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        tokens = torch.randint(0, 11, (4, 5), generator=draw)
        engine.backward(torch.nn.functional.cross_entropy(engine(tokens).reshape(-1, 11), tokens.reshape(-1)))
        engine.step()


def save(rank, world, stage, out):
    engine = engine_of(stage, 2)
    train(engine, 3, 5)
    engine.save_checkpoint(out, tag="trained", exclude_frozen_parameters=True)


def go_on(rank, world, stage, path, out):
    engine = engine_of(stage, 3)
    assert engine.load_checkpoint(path, load_module_strict=False)[0] is not None
    train(engine, 1, 6)
    engine.save_checkpoint(out, tag="trained")


def numbers(path):
    """The floats in the optimizers' state, file by file."""
    import torch
    folder = os.path.join(path, support.tag_of(path))
    found = {}
    for name in sorted(n for n in os.listdir(folder) if "optim_states" in n):
        state = torch.load(os.path.join(folder, name), weights_only=False)["optimizer_state_dict"]
        state = state.get("base_optimizer_state") or state["optimizer_state_dict"]
        found[name] = [s["weight_sum"] for s in state["state"].values()]
    return found


def main():
    support.find_python()
    sys.path.insert(0, os.path.join(support.SAMPLES, "generate"))
    import common
    for stage in (2, 3):
        work = tempfile.mkdtemp()
        try:
            at = lambda name: os.path.join(work, name)
            common.spawn(save, 2, stage, at("source"))
            support.tool("ckpt-reshard", at("source"), at("three"), "--world-size", 3, "--verify")
            support.tool("ckpt-reshard", at("three"), at("ours"), "--world-size", 2, "--verify")
            kept = numbers(at("source"))
            assert all(type(n) is float for file in kept.values() for n in file), kept
            assert numbers(at("ours")) == kept, (numbers(at("ours")), kept)
            support.tool("ckpt-convert", at("source"), at("universal"), "--to", "deepspeed-universal", "--verify")
            for name in ("source", "ours"):
                common.spawn(go_on, 2, stage, at(name), at(name + "_further"))
            want, got = support.hashes(at("source_further")), support.hashes(at("ours_further"))
            assert got == want and "model.0.weight" in want, [k for k in set(got) | set(want) if got.get(k) != want.get(k)][:5]
            print("ok   two ranks of stage", stage, "go on with an adapter whose frozen parameters were left out")
        finally:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
