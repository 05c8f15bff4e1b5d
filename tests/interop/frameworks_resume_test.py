"""What frameworks saved goes through other formats and back, and they resume from it: after the same further steps every parameter equals, bit for bit,
that of the run that resumed from the framework's own file. Each part is named on the command line or, without a name, played where its framework is
installed; what is not played is said."""
import functools, importlib.util, pathlib, shutil, subprocess, sys, tempfile
from support import done, tool
import torch

# Through one file, and through a sharded checkpoint of another number of ranks, cut where it can be.
WAYS = {"one file": ("--to", "torch-save"), "two ranks": ("--to", "torch-dcp", "--world-size", 2), "four ranks": ("--to", "torch-dcp", "--world-size", 4)}


def ways(source, folder, name):
    """(way, file) of what comes back from each."""
    for way, flags in WAYS.items():
        there, back = folder / "there", folder / "back"
        tool("ckpt-convert", source, there, *flags)
        tool("ckpt-convert", there, back / name, "--to", "torch-save", "--verify")
        yield way, back / name
        shutil.rmtree(back)
        shutil.rmtree(there)


def same(got, want, what):
    bad = [name for name in want if not torch.equal(got[name], want[name])]
    assert want and set(got) == set(want) and not bad, f"{what}: {len(bad)} of {len(want)} parameters differ after the resumed steps, first {bad[:1]}"


def parameters(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 64))


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.randn(12, 64, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def optimizer_steps(make, folder):
    """A loop of one's own around an optimizer of `make(parameters)`."""

    def steps(model, optimizer, seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            model(torch.randn(8, 64, generator=generator)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def resumed(file):
        model = net()
        optimizer = make(model.parameters())
        state = torch.load(file, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        steps(model, optimizer, 12)
        return parameters(model)

    model = net()
    optimizer = make(model.parameters())
    steps(model, optimizer, 11)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, folder / "own.pt")
    want = resumed(folder / "own.pt")
    assert not all(torch.equal(want[name], p) for name, p in model.named_parameters()), "no step was taken"
    checked = 0
    for way, file in ways(folder / "own.pt", folder, "back.pt"):
        same(resumed(file), want, way)
        checked += 1
    return checked


def torchao(folder):
    torch.compile = lambda function, **_: function  # its kernels are no part of this
    from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
    return sum(optimizer_steps(lambda parameters: kind(parameters, lr=0.01), folder) for kind in (AdamW8bit, AdamW4bit, AdamWFp8))


def bitsandbytes(folder):
    from bitsandbytes.optim import AdamW, AdamW8bit, Lion8bit
    makers = [functools.partial(AdamW8bit, min_8bit_size=16), functools.partial(Lion8bit, min_8bit_size=16), AdamW]
    return sum(optimizer_steps(lambda parameters: make(parameters, lr=0.01), folder) for make in makers)


def lightning(folder):
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"width": 64})
            self.net = net()

        def training_step(self, batch):
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}

    def fit(epochs, root, resume=None):
        framework.seed_everything(7, verbose=False)
        module = Module()
        keep = framework.pytorch.callbacks.ModelCheckpoint(dirpath=root, filename="{epoch}", save_top_k=-1, every_n_epochs=1)
        trainer = framework.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, default_root_dir=root, enable_progress_bar=False, logger=False,
                                    enable_model_summary=False, callbacks=[keep])
        trainer.fit(module, torch.utils.data.DataLoader(Rows(), batch_size=4), ckpt_path=resume and str(resume))
        return trainer, parameters(module)

    fit(1, folder / "first")
    source = folder / "first" / "epoch=0.ckpt"
    trainer, want = fit(3, folder / "own", source)
    assert trainer.global_step == 9, trainer.global_step
    checked = 0
    for way, file in ways(source, folder, "back.ckpt"):
        trainer, got = fit(3, folder / "ours", file)
        assert trainer.global_step == 9, (way, trainer.global_step)
        same(got, want, way)
        checked += 1
    return checked + lightning_folder(folder, source)


def equal(a, b):
    if torch.is_tensor(a):
        return torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or a.__dict__ == b.__dict__)


def lightning_folder(folder, saved):
    """A sharded checkpoint as Lightning's FSDP saves it, with what is no tensor in meta.pt: Lightning knows the resharded folder as its own, and its
    script makes the same file of it."""
    import torch.distributed.checkpoint as dcp
    state = torch.load(saved, weights_only=False)
    model = state.pop("state_dict")
    names = list(model)
    optimizer, = state.pop("optimizer_states")
    optimizer["state"] = {names[id]: leaves for id, leaves in optimizer["state"].items()}
    for group in optimizer["param_groups"]:
        group["params"] = [names[id] for id in group["params"]]
    source = folder / "epoch=0.ckpt"
    dcp.save({"model": model, "optimizer_0": optimizer}, checkpoint_id=source, no_dist=True)
    torch.save(state, source / "meta.pt")

    def consolidated(sharded):
        file = folder / "consolidated.ckpt"
        subprocess.run([sys.executable, "-m", "lightning.pytorch.utilities.consolidate_checkpoint", str(sharded), "--output_file", str(file)], check=True)
        made = torch.load(file, weights_only=False)
        file.unlink()
        return {key: made[key] for key in sorted(made)}

    from lightning.fabric.strategies.fsdp import _is_sharded_checkpoint
    want = consolidated(source)
    for ranks in (2, 3):
        there = folder / f"of_{ranks}.ckpt"
        tool("ckpt-reshard", source, there, "--world-size", ranks, "--verify")
        assert _is_sharded_checkpoint(there), ranks
        got = consolidated(there)
        bad = [key for key in {*want, *got} if not equal(want.get(key), got.get(key))]
        assert not bad, f"{ranks} ranks: {bad[0]}: {got.get(bad[0])} for {want.get(bad[0])}"
    return 2


def peft(folder):
    """Trainer's folder with an adapter: its weights, optimizer and schedule."""
    import transformers
    from peft import LoraConfig, get_peft_model
    from trainer_folder_test import Tokens, llama

    def train(root, resume=None):
        transformers.set_seed(7)
        model = get_peft_model(llama(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
        arguments = transformers.TrainingArguments(
            output_dir=str(root), max_steps=5, save_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, weight_decay=0.1,
            learning_rate=0.01, logging_steps=1, disable_tqdm=True, seed=7)
        trainer = transformers.Trainer(model, arguments, train_dataset=Tokens())
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return {name: p for name, p in parameters(model).items() if "lora" in name}

    want = train(folder / "own")
    source = folder / "own" / "checkpoint-2"
    checked = 0
    for way, flags in {**WAYS, "itself": ("--to", "hf-trainer")}.items():
        there, back = folder / "there", folder / "back"
        tool("ckpt-convert", source, there, *flags)
        tool("ckpt-convert", there, back, "--to", "hf-trainer", "--verify")
        for file in source.iterdir():  # the run's own, which other formats have no place for; a DCP has leaves of the schedule alone
            own = not (back / file.name).exists() or (file.name == "scheduler.pt" and "torch-dcp" in flags)
            if own and not file.name.endswith((".safetensors", "optimizer.pt")):
                shutil.copy(file, back / file.name)
        same(train(folder / "ours", back), want, way)
        for made in (there, back, folder / "ours"):
            shutil.rmtree(made)
        checked += 1
    return checked


def composer(folder):
    import composer as framework

    class Model(framework.ComposerModel):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, batch):
            return self.net(batch)

        def loss(self, outputs, batch):
            return outputs.pow(2).mean()

    def fit(epochs, root, resume=None):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        trainer = framework.Trainer(
            model=model, train_dataloader=torch.utils.data.DataLoader(Rows(), batch_size=4), max_duration=f"{epochs}ep", optimizers=optimizer,
            schedulers=framework.optim.ExponentialScheduler(0.5), device="cpu", seed=7, save_folder=str(root), save_interval="1ep",
            save_filename="ep{epoch}.pt", save_overwrite=True, load_path=resume and str(resume), progress_bar=False)
        trainer.fit()
        return trainer, parameters(model)

    fit(1, folder / "first")
    source = folder / "first" / "ep1.pt"
    trainer, want = fit(3, folder / "own", source)
    assert trainer.state.timestamp.batch == 9, trainer.state.timestamp.batch
    checked = 0
    for way, file in ways(source, folder, "ep1.pt"):
        trainer, got = fit(3, folder / "ours", file)
        assert trainer.state.timestamp.batch == 9, (way, trainer.state.timestamp.batch)
        same(got, want, way)
        checked += 1
    return checked


PARTS = {part.__name__: part for part in (lightning, peft, torchao, bitsandbytes, composer)}

if __name__ == "__main__":
    asked = sys.argv[1:]
    checked = 0
    for name in asked or PARTS:
        if not asked and importlib.util.find_spec(name) is None:
            print(f"skipped: {name} is not installed")
            continue
        with tempfile.TemporaryDirectory() as made:
            count = PARTS[name](pathlib.Path(made))
        print(f"{name}: resumed from {count}")
        checked += count
    done(checked, "checkpoints from which their frameworks resumed")
