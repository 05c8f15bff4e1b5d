"""Optimizer state keyed by id, by name and flattened, against PyTorch's own: FSDP.rekey_optim_state_dict both ways, and
get/set_optimizer_state_dict through torch.distributed.checkpoint, with flatten_optimizer_state_dict and without. Steps after loading what we
rekeyed equal steps without any checkpoint, bit for bit."""
import copy, json, os, tempfile
from support import done, tool
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
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


FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Nested(torch.nn.Module):
    """Names with dots; one parameter is in no group, one in a group and frozen, one never has a gradient."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.ModuleDict({"a": model(), "b": torch.nn.Linear(3, 3)})
        self.head = torch.nn.Linear(3, 2)
        self.unused = torch.nn.Parameter(torch.ones(2, 2))
        self.alone = torch.nn.Parameter(torch.ones(4))
        self.body["b"].bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body["b"](self.body["a"](x)))


def nested_groups(m, named=False):
    """Interleaved: groups do not follow the order of the model. Those of equal options stay apart by another option."""
    ps = [(n, p) for n, p in m.named_parameters() if n != "alone"]
    pick = lambda k: [(n, p) if named else p for i, (n, p) in enumerate(ps) if i % 3 == k]
    return [{"params": pick(k), "weight_decay": 0.1 * k} for k in range(3)]


class Counted(torch.optim.Optimizer):
    """State in dicts, as Shampoo and others keep it."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "betas": (0.5, 0.25), "foreach": None})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, factors={"left": torch.zeros_like(p), "deep": {"norm": torch.zeros(())}})
                state["step"] += 1
                state["factors"]["left"].mul_(group["betas"][0]).add_(p.grad)
                state["factors"]["deep"]["norm"] += p.grad.norm()
                p.sub_(group["lr"] * state["factors"]["left"] / (1 + state["factors"]["deep"]["norm"]))


FLAT_KINDS = {
    **{kind: KINDS[kind] for kind in ("adamw", "sgd", "momentum")},
    "tensor lr": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(0.01)),
    "tensor betas": lambda groups: torch.optim.Adam(groups, lr=0.01, betas=(torch.tensor(0.5), torch.tensor(0.75))),
    "nested": Counted,
}


def hashes(path):
    report = json.loads(tool("ckpt-inspect", "hash", path, "--format", "json"))
    return report["root"], report["values_root"]


def save_dcp(state, path):
    dcp.save(state, checkpoint_id=path, no_dist=True)


def load_dcp(template, path):
    dcp.load(template, checkpoint_id=path, no_dist=True)
    return template


def check_flat(kind, make, d):
    """PyTorch writes one optimizer in each of its forms; each becomes each other one, as PyTorch wrote it."""
    torch.manual_seed(3)
    m = Nested()
    opt = make(nested_groups(m, named=True))                             # else nothing says whose the ids without state are
    train(m, opt, 3, frozen=("body.a.1.weight",) if kind == "adamw" else ())
    forms = {"id": copy.deepcopy(opt.state_dict()), "fqn": get_optimizer_state_dict(m, opt), "flat": get_optimizer_state_dict(m, opt, options=FLAT)}
    sources, dcps, oracle = {}, {}, {}
    for form, optim in forms.items():
        state = {"model": m.state_dict(), "optim": optim}
        sources[form], dcps[form] = os.path.join(d, f"{kind}-{form}.pt"), os.path.join(d, f"{kind}-{form}-dcp")
        torch.save(state, sources[form])
        save_dcp(state, dcps[form])
        oracle[form] = hashes(dcps[form])
    made = 0
    d = tempfile.mkdtemp(dir=d)
    for source in forms:
        for target in forms:
            for path, to in ((sources[source], "torch-dcp"), (dcps[source], "torch-save")):
                out = os.path.join(d, f"{made}-out" + (".pt" if to == "torch-save" else ""))
                made += 1
                tool("ckpt-convert", path, out, "--to", to, "--optim-keys", target, "--verify")
                what = f"{kind}: {source} of {os.path.basename(path)} to {target} as {to}"
                if to == "torch-dcp":
                    assert hashes(out) == oracle[target], what
                else:
                    got, want = torch.load(out, weights_only=False)["optim"], dict(forms[target])
                    if not want.get("state", True):                      # DCP holds no empty dicts
                        got.pop("state", None), want.pop("state")
                    same(want, got, what)
                if target == "flat":
                    resume(kind, make, m, opt, out, to, what)
    return made


def resume(kind, make, m, opt, out, to, what):
    """Loads our flattened result with PyTorch's own function, and goes on beside the run that never stopped."""
    if kind == "adamw":                                                  # PyTorch wants state of every parameter that may have a gradient
        return
    undisturbed, other = Nested(), Nested()
    undisturbed.load_state_dict(m.state_dict())
    running = make(nested_groups(undisturbed, named=True))
    running.load_state_dict(copy.deepcopy(opt.state_dict()))
    fresh = make(nested_groups(other, named=True))
    template = {"model": other.state_dict(), "optim": get_optimizer_state_dict(other, fresh, options=FLAT)}
    if to == "torch-dcp":
        # what never had a gradient has no state to be loaded, and get_optimizer_state_dict made some up
        stored = set(dcp.FileSystemReader(out).read_metadata().state_dict_metadata)
        template["optim"] = {k: v for k, v in template["optim"].items() if f"optim.{k}" in stored or isinstance(v, tuple)}
        loaded = load_dcp(template, out)
    else:
        loaded = torch.load(out, weights_only=False)
    other.load_state_dict(loaded["model"])
    complete = get_optimizer_state_dict(other, fresh, options=FLAT)      # zeros for what has none
    complete.update(loaded["optim"])
    set_optimizer_state_dict(other, fresh, complete, options=FLAT)
    train(undisturbed, running, 2)
    train(other, fresh, 2)
    same(undisturbed.state_dict(), other.state_dict(), what + ": after two more steps")


def check_two_optimizers(d):
    """A GAN's, in one model: both by ids, or one by names and one flattened already."""
    both = torch.nn.ModuleDict({"generator": model(), "critic": Nested()})
    parameters = {name: [(n, p) for n, p in both.named_parameters() if n.startswith(name)] for name in both}
    opts = {name: torch.optim.AdamW([{"params": ps[::2], "weight_decay": 0.1}, {"params": ps[1::2]}], lr=0.01) for name, ps in parameters.items()}
    for name in both:
        train(both[name], opts[name], 2)
    ids = {name: opts[name].state_dict() for name in both}
    names = {name: get_optimizer_state_dict(both, opts[name]) for name in both}
    flat = {name: get_optimizer_state_dict(both, opts[name], options=FLAT) for name in both}
    mixed = {"generator": names["generator"], "critic": flat["critic"]}
    for source, keys, want in ((ids, "flat", flat), (mixed, "flat", flat), (mixed, "fqn", names), (mixed, "id", ids)):
        src, out = os.path.join(d, "two.pt"), os.path.join(d, "two-out.pt")
        torch.save({"model": both.state_dict(), **{f"{name}_optim": source[name] for name in both}}, src)
        tool("ckpt-convert", src, out, "--optim-keys", keys, "--verify", "--force")
        got = torch.load(out, weights_only=False)
        for name in both:
            same(want[name], got[f"{name}_optim"], f"{name} to {keys}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        m = model()
        torch.save({"model": m.state_dict(), "optim": torch.optim.SGD(groups(m)).state_dict()}, os.path.join(d, "open.pt"))
        tool("ckpt-convert", os.path.join(d, "open.pt"), os.path.join(d, "open-named.pt"), "--optim-keys", "fqn", status=5)
        for kind, make in KINDS.items():
            check_against_fsdp(kind, make, d)
            check(kind, make, d)
        check_two_optimizers(d)
        made = sum(check_flat(kind, make, d) for kind, make in FLAT_KINDS.items())
    done(len(KINDS) + made, "optimizers rekeyed as PyTorch rekeys them, and resumed from")
