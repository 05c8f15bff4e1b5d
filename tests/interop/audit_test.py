"""Runs that PyTorch trained, audited: nothing is said of healthy ones, whatever the optimizer, the format and the schedule; norms, changes and
second moments of the trend are PyTorch's; and what is done to such a run is found."""
import json, math, os, shutil, subprocess, tempfile
from support import BIN, done, tool
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_state_dict

SAVES = (4, 8, 16, 32, 64)
torch.set_num_threads(1)
VOCABULARY, WIDTH = 96, 64


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023: the sign of an average of gradients."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state.setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((m * group["betas"][0] + p.grad * (1 - group["betas"][0])).sign(), alpha=-group["lr"])
                m.mul_(group["betas"][1]).add_(p.grad, alpha=1 - group["betas"][1])


class Model(torch.nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        torch.nn.init.normal_(self.embed_tokens.weight, std=0.02)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)  # its layers begin as copies of one
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight
        mask = torch.full((32, 32), -math.inf).triu(1)
        self.register_buffer("mask", mask)  # -Inf that is meant

    def forward(self, tokens):
        return self.lm_head(self.norm(self.layers(self.embed_tokens(tokens), mask=self.mask)))


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=2e-3, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
    "lion": lambda p: Lion(p, lr=3e-4, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


def batch(generator):
    """Sequences that count by a step of their own: something to learn."""
    first = torch.randint(0, VOCABULARY, (8, 1), generator=generator)
    step = torch.randint(1, 5, (8, 1), generator=generator)
    return (first + step * torch.arange(33)) % VOCABULARY


def train(folder, make, save, tied=False, saves=SAVES, at_step=lambda step, model, optimizer: optimizer):
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(11)
    model = Model(tied)
    optimizer = make(model.parameters())
    rate = [group["lr"] for group in optimizer.param_groups]
    for step in range(1, saves[-1] + 1):
        for group, lr in zip(optimizer.param_groups, rate):
            group["lr"] = lr * min(1, step / 10) * 0.5 * (1 + math.cos(math.pi * step / saves[-1] / 1.1))
        tokens = batch(generator)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer = at_step(step, model, optimizer)
        if step in saves:
            save(folder, step, model, optimizer)
    assert loss < 4.4, f"nothing was learned: {loss}"  # log(96) is 4.56


def save_torch(folder, step, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step}, f"{folder}/step_{step}.pt")


def save_dcp(folder, step, model, optimizer):
    optimizer.zero_grad()
    parameters, state = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optim": state, "train_state": {"step": step}}, checkpoint_id=f"{folder}/step-{step}")


def save_trainer(folder, step, model, optimizer):
    """As Hugging Face's Trainer: files of their own."""
    to = f"{folder}/checkpoint-{step}"
    os.makedirs(to)
    save_file({name: value.contiguous().clone() for name, value in model.state_dict().items()}, f"{to}/model.safetensors", {"format": "pt"})
    torch.save(optimizer.state_dict(), f"{to}/optimizer.pt")
    torch.save({"last_epoch": step, "_step_count": step + 1}, f"{to}/scheduler.pt")
    json.dump({"global_step": step, "log_history": [{"step": s, "loss": 1.0} for s in range(step)]}, open(f"{to}/trainer_state.json", "w"))


def audit(folder, *flags, status=0):
    return json.loads(tool("ckpt-inspect", "audit", folder, "--format", "json", "--progress", "none", *flags, status=status))


def worse_than_info(report):
    return [(note["code"], note["file"], note["tensor"], note["message"]) for note in report["findings"] if note["severity"] != "info"]


def healthy(root):
    count = 0
    for name, make in OPTIMIZERS.items():
        for save in (save_torch, save_dcp, save_trainer):
            folder = f"{root}/{name}-{save.__name__}"
            os.makedirs(folder)
            tied = name == "adamw" and save is not save_trainer
            if tied:
                json.dump({"tie_word_embeddings": True}, open(f"{folder}/config.json", "w"))
            train(folder, make, save, tied=tied)
            for flags in ((), ("--deep",), ("--deep", "--budget", "2MB")):
                report = audit(folder, *flags)
                assert worse_than_info(report) == [], (folder, flags, worse_than_info(report))
                assert [row["step"] for row in report["checkpoints"]] == list(SAVES) and report["newest_sound"] == report["newest_whole"]
                assert all(row["stored_step"] == row["step"] and row["parameters_with_state"] > 30 for row in report["checkpoints"]), report["checkpoints"]
                count += 1
    return count


def trends(root):
    folder, count = f"{root}/adamw-save_torch", 0
    loaded = {step: torch.load(f"{folder}/step_{step}.pt") for step in SAVES}
    names = [name for name in loaded[4]["model"] if name.startswith("layers.layers.1.") and name.endswith("weight")]
    values = {of: {(p["tensor"], p["step"]): p["value"] for p in json.loads(tool("ckpt-inspect", "trend", folder, "--tensor", "model.layers.layers.1.*weight",
              "--of", of, "--format", "json"))["points"]} for of in ("norm", "update", "v_max")}
    model = Model(tied=True)
    ids = {name: i for i, (name, _) in enumerate(model.named_parameters())}
    for name in names:
        before = None
        for step in SAVES:
            now = loaded[step]["model"][name].double()
            assert math.isclose(values["norm"]["model." + name, step], now.norm().item(), rel_tol=1e-12)
            moment = loaded[step]["optimizer"]["state"][ids[name]]["exp_avg_sq"]
            assert math.isclose(values["v_max"][f"optimizer.state.{ids[name]}.exp_avg_sq", step], moment.max().item(), rel_tol=1e-12)
            count += 2
            if before is not None:
                assert math.isclose(values["update"]["model." + name, step], ((now - before).norm() / before.norm()).item(), rel_tol=1e-9)
                count += 1
            before = now
    assert count > 60
    return count


def broken(root):
    """The same training, and one thing done to it."""
    fresh = lambda step, model, optimizer: OPTIMIZERS["adamw"](model.parameters()) if step == 20 else optimizer
    cases = {"restarted": ("AU022", (), fresh)}

    def nan(step, model, optimizer):
        if step == 40:
            with torch.no_grad():
                model.norm.weight[3] = math.nan
        return optimizer
    cases["nan"] = ("AU040", ("--deep",), nan)
    for name, (code, flags, act) in cases.items():
        folder = f"{root}/{name}"
        os.makedirs(folder)
        try:
            train(folder, OPTIMIZERS["adamw"], save_torch, at_step=act)
        except AssertionError:
            assert name == "nan"
        found = worse_than_info(audit(folder, *flags, status=1))
        assert code in {each[0] for each in found}, (name, found)
        assert all(each[1] in ("step_32.pt", "step_64.pt") for each in found if each[0] == code), found
    folder = f"{root}/stale"  # old tensors under a new step
    shutil.copytree(f"{root}/adamw-save_trainer", folder)
    for file in ("model.safetensors", "optimizer.pt"):
        shutil.copy(f"{folder}/checkpoint-32/{file}", f"{folder}/checkpoint-64/{file}")
    assert {each[0] for each in worse_than_info(audit(folder, "--deep", status=1))} == {"AU010"}
    for lost, finding in (("checkpoint-8/scheduler.pt", ("AU006", "checkpoint-8")), ("checkpoint-16/optimizer.pt", ("AU020", "checkpoint-16"))):
        os.remove(f"{folder}/{lost}")
        found = {(each[0], each[1]) for each in worse_than_info(audit(folder, status=1))}
        assert finding in found, found
    return 4


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        audits, points, faults = healthy(root), trends(root), broken(root)
    done(audits + points + faults, f"audits of healthy runs ({len(OPTIMIZERS)} optimizers, 3 formats), points as PyTorch has them, and faults that were found")
