"""hf-trainer made of other formats: a real Trainer resumes from it, and goes on as if it had not been interrupted; FSDP takes the form with
names (FULL_STATE_DICT) by accelerate's own loaders, and takes a step."""
import json, os, pathlib, shutil, subprocess, sys, tempfile, types
from support import SAMPLES, done, tool
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

try:
    import accelerate, transformers
except ImportError:
    print("skipped: transformers and accelerate are not installed")
    sys.exit(77)


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 40, (32, 6), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def llama(tied=False):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=16, tie_word_embeddings=tied))


def tied():
    return llama(tied=True)


def tied_and_frozen():
    model = tied()
    model.model.layers[0].requires_grad_(False)
    return model


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0, resid_pdrop=0.1))


def train(make, folder, resume=None):
    """(losses by step, parameters at the end) of a Trainer over 5 steps."""
    transformers.set_seed(7)
    args = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=5, save_steps=2, save_total_limit=3, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        weight_decay=0.1, learning_rate=0.01, logging_steps=1, disable_tqdm=True, seed=7)
    trainer = transformers.Trainer(make(), args, train_dataset=Tokens())
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    return losses, {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def same_run(got, want, what):
    assert {step: got[0].get(step) for step in want[0] if step > 2} == {step: loss for step, loss in want[0].items() if step > 2}, \
        f"{what}: losses {got[0]} for {want[0]}"
    bad = [name for name in want[1] if not torch.equal(got[1][name], want[1][name])]
    assert not bad, f"{what}: {len(bad)} parameters differ after the resumed steps, first {bad[0]}"


def check_resume(folder, name, make, ways):
    run = folder / name
    want = train(make, run)
    source = run / "checkpoint-2"
    checked = 0
    for way in ways:
        there, here = WAYS[way]
        other, back = run / "other", run / "back"
        tool("ckpt-convert", source, other, *there)
        said = tool("ckpt-convert", other, back, "--to", "hf-trainer", "--verify", *here)
        assert "verified" in said, said
        # The run's own, which other formats have no place for; of the schedule a DCP has leaves alone, and lacks its empty dicts.
        for file in ("trainer_state.json", "rng_state.pth") + (("scheduler.pt",) if "DCP" in way else ()):
            shutil.copy(source / file, back / file)
        same_run(train(make, run / "resumed", back), want, f"{name}, {way}")
        for made in (other, back, run / "resumed"):
            shutil.rmtree(made)
        checked += 1
    return checked


WAYS = {  # there, and back
    "DCP of two ranks, by names": (("--to", "torch-dcp", "--world-size", 2, "--optim-keys", "fqn"), ()),
    "torch.save, by names": (("--to", "torch-save", "--optim-keys", "fqn"), ()),
    "DCP by ids": (("--to", "torch-dcp"), ()),
    "DCP by ids that stay": (("--to", "torch-dcp"), ("--optim-keys", "id")),
}


def check_single_group(folder):
    """One group for all, as a loop of one's own has it: Trainer has two, with the options that the source had."""
    want = train(llama, folder / "single")
    source = folder / "single" / "checkpoint-2"
    tool("ckpt-convert", source, folder / "one", "--to", "torch-save", "--optim-keys", "fqn")
    file = next((folder / "one").glob("*.pt"))
    state = torch.load(file, weights_only=True)
    first, second = state["optimizer"]["param_groups"]
    state["optimizer"]["param_groups"] = [{**first, "params": sorted(first["params"] + second["params"])}]
    torch.save(state, folder / "one.pt")
    tool("ckpt-convert", folder / "one.pt", folder / "two", "--to", "hf-trainer")
    got = torch.load(folder / "two" / "optimizer.pt", weights_only=True)
    live = torch.load(source / "optimizer.pt", weights_only=True)
    assert [g["params"] for g in got["param_groups"]] == [g["params"] for g in live["param_groups"]]
    assert all(g["weight_decay"] == first["weight_decay"] for g in got["param_groups"])
    for id, leaves in live["state"].items():
        assert all(torch.equal(got["state"][id][leaf], value) for leaf, value in leaves.items()), id
    for file in ("trainer_state.json", "rng_state.pth"):
        shutil.copy(source / file, folder / "two" / file)
    train(llama, folder / "goes on", folder / "two")
    return 1


def check_sidecars(folder):
    """A Trainer's folder with FSDP's DCP below: what lies beside it travels, and Trainer goes on from that without FSDP."""
    want = train(llama, folder / "sharded")
    source = folder / "sharded" / "checkpoint-2"
    tool("ckpt-convert", source, folder / "named", "--to", "torch-save", "--optim-keys", "fqn")
    loaded = torch.load(next((folder / "named").glob("*.pt")), weights_only=True)
    dcp_folder = folder / "checkpoint-2"
    for part, key in (("pytorch_model_fsdp_0", "model"), ("optimizer_0", "optimizer")):
        dcp.save({key: loaded[key]}, checkpoint_id=dcp_folder / part, no_dist=True)
    for file in ("trainer_state.json", "rng_state.pth", "scheduler.pt", "training_args.bin"):
        shutil.copy(source / file, dcp_folder / file)
    said = tool("ckpt-convert", dcp_folder, folder / "plain", "--to", "hf-trainer", "--verify")
    assert "verified" in said, said
    for file in ("trainer_state.json", "rng_state.pth", "scheduler.pt"):
        assert (folder / "plain" / file).read_bytes() == (source / file).read_bytes(), file
    same_run(train(llama, folder / "on", folder / "plain"), want, "FSDP's folders")
    return 1


def fsdp_rank(rank, world, port, source, result):
    """Loads `source` by accelerate's savers' counterparts, and takes two steps; rank 0 writes the losses."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.state import PartialState
    from accelerate.utils.fsdp_utils import load_fsdp_model, load_fsdp_optimizer
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    PartialState(cpu=True)
    transformers.set_seed(99)  # other weights than those that are loaded
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=24, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=16, tie_word_embeddings=False))
    model.model.embed_tokens.weight.requires_grad_(False)
    for layer in model.model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for n, p in named if "norm" not in n], "weight_decay": 0.1},
                                   {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0}], lr=0.01)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT", cpu_ram_efficient_loading=False)
    run = types.SimpleNamespace(process_index=rank, num_processes=world, is_main_process=rank == 0, is_fsdp2=True, wait_for_everyone=dist.barrier)
    draw = torch.Generator().manual_seed(11)

    def step():
        ids = torch.randint(0, 24, (2, 6), generator=draw)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step()
    load_fsdp_model(plugin, run, model, source, 0)
    load_fsdp_optimizer(plugin, run, optimizer, model, source, 0)
    losses = [step(), step()]
    if rank == 0:
        pathlib.Path(result).write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()


def fsdp_losses(folder, source):
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    result = folder / "losses.json"
    ranks = [subprocess.Popen([sys.executable, __file__, "fsdp", str(rank), "2", str(port), str(source), str(result)]) for rank in range(2)]
    try:
        assert all(rank.wait(timeout=240) == 0 for rank in ranks), source
    finally:
        for rank in ranks:
            rank.kill()
    return json.loads(result.read_text())


def check_fsdp(folder):
    source = SAMPLES / "accelerate" / "fsdp2_full_w2" / "checkpoint"
    want = fsdp_losses(folder, source)
    assert "verified" in tool("ckpt-reshard", source, folder / "full", "--world-size", 1, "--verify")
    assert fsdp_losses(folder, folder / "full") == want
    tool("ckpt-convert", source, folder / "dcp", "--to", "torch-dcp", "--world-size", 3)
    tool("ckpt-convert", folder / "dcp", folder / "again", "--to", "hf-trainer", "--optim-keys", "fqn")
    assert fsdp_losses(folder, folder / "again") == want
    return 2


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checked = check_fsdp(folder) + check_single_group(folder) + check_sidecars(folder)
        named = list(WAYS)[:3]
        for case, make, ways in (("llama", llama, named), ("tied läufe", tied, named), ("gpt2", gpt2, named),
                                 ("frozen", tied_and_frozen, ["DCP by ids that stay"])):  # which layer is frozen, shapes leave open
            checked += check_resume(folder, case, make, ways)
    done(checked, "folders of Trainer and of FSDP that the frameworks went on from")


if __name__ == "__main__":
    if sys.argv[1:2] == ["fsdp"]:
        fsdp_rank(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6])
    else:
        main()
