"""Optimizer state keyed by id and by name, against PyTorch's own: FSDP.rekey_optim_state_dict both ways, and get/set_optimizer_state_dict
through torch.distributed.checkpoint. Steps after loading what we rekeyed equal steps without any checkpoint, bit for bit."""
import copy, os, tempfile
from support import done, tool
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(7, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3))


KINDS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
}


def groups(m, named=False):
    """Matrices decay, vectors do not."""
    ps = list(m.named_parameters())
    pick = lambda ndim: [(n, p) if named else p for n, p in ps if p.ndim == ndim]
    return [{"params": pick(2), "weight_decay": 0.1}, {"params": pick(1), "weight_decay": 0.0}]


def train(m, opt, steps, frozen=()):
    g = torch.Generator().manual_seed(11)
    for _ in range(steps):
        x = torch.randn(4, 7, generator=g)
        opt.zero_grad()
        m(x).square().mean().backward()
        for name, p in m.named_parameters():
            if name in frozen:
                p.grad = None
        opt.step()


def same(a, b, where=""):
    if torch.is_tensor(a) or torch.is_tensor(b):
        assert torch.is_tensor(a) and torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert isinstance(b, dict) and set(a) == set(b), (where, sorted(map(str, a)), sorted(map(str, b)))
        for k in a:
            same(a[k], b[k], f"{where}.{k}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}.{i}")
    else:
        assert a == b or (a != a and b != b), (where, a, b)


def check_against_fsdp(kind, make, d):
    """One group: FSDP numbers by the order of the model, not of the groups."""
    m = model()
    opt = make(m.parameters())
    train(m, opt, 3, frozen=("0.weight",) if kind == "adamw" else ())   # a parameter without any state
    ids = opt.state_dict()
    src, named = os.path.join(d, f"{kind}-one.pt"), os.path.join(d, f"{kind}-one-named.pt")
    torch.save({"model": m.state_dict(), "optim": ids}, src)
    tool("ckpt-convert", src, named, "--optim-keys", "fqn", "--verify")
    ours = torch.load(named)["optim"]
    names = FSDP.rekey_optim_state_dict(copy.deepcopy(ids), OptimStateKeyType.PARAM_NAME, m)
    for a, b in zip(names["param_groups"], ours["param_groups"]):        # PyTorch sorts the names of a group
        if ids["state"]:                                                 # and leaves ids where there is no state at all
            assert sorted(a["params"]) == sorted(b["params"]), (kind, a["params"], b["params"])
        same({k: v for k, v in a.items() if k != "params"}, {k: v for k, v in b.items() if k != "params"}, f"{kind} group")
    same(names["state"], ours["state"], f"{kind} names")


def check(kind, make, d):
    m = model()
    opt = make(groups(m, named=kind == "sgd"))                           # nothing but recorded names tells whose ids without state are
    train(m, opt, 3, frozen=("0.weight",) if kind == "adamw" else ())
    ids = opt.state_dict()
    src = os.path.join(d, f"{kind}.pt")
    torch.save({"model": m.state_dict(), "optim": ids}, src)
    named, back = os.path.join(d, f"{kind}-named.pt"), os.path.join(d, f"{kind}-back.pt")
    tool("ckpt-convert", src, named, "--optim-keys", "fqn", "--verify")
    by_name = {n: id(p) for n, p in m.named_parameters()}
    for ours, group in zip(torch.load(named)["optim"]["param_groups"], opt.param_groups):
        assert [by_name[n] for n in ours["params"]] == [id(p) for p in group["params"]], kind
    tool("ckpt-convert", named, back, "--optim-keys", "id", "--verify")
    same(ids, torch.load(back)["optim"], f"{kind} ids")

    folder = os.path.join(d, f"{kind}-dcp")
    tool("ckpt-convert", src, folder, "--to", "torch-dcp", "--optim-keys", "fqn", "--verify")
    other = model()
    fresh = make(groups(other, named=kind == "sgd"))
    want = get_optimizer_state_dict(other, fresh)
    sd = {"model": other.state_dict(), "optim": want}
    dcp.load(sd, checkpoint_id=folder, no_dist=True, planner=dcp.DefaultLoadPlanner(allow_partial_load=kind == "adamw"))
    other.load_state_dict(sd["model"])
    set_optimizer_state_dict(other, fresh, sd["optim"])
    if kind != "adamw":                                                # PyTorch makes up state for the frozen one
        same(ids["state"], fresh.state_dict()["state"], f"{kind} loaded")
        train(m, opt, 2)
        train(other, fresh, 2)
        same(m.state_dict(), other.state_dict(), f"{kind} after two more steps")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        m = model()
        torch.save({"model": m.state_dict(), "optim": torch.optim.SGD(groups(m)).state_dict()}, os.path.join(d, "open.pt"))
        tool("ckpt-convert", os.path.join(d, "open.pt"), os.path.join(d, "open-named.pt"), "--optim-keys", "fqn", status=5)
        for kind, make in KINDS.items():
            check_against_fsdp(kind, make, d)
            check(kind, make, d)
    done(len(KINDS), "optimizers rekeyed as PyTorch rekeys them, and resumed from")
