"""Writes the fixtures of tests/ops beside this file, and what NumPy and PyTorch say about them.

    python make_fixtures.py        (PyTorch 2.13, NumPy 2)

stat/tensors.pt, stat/expected.json    tensors of many types; numbers over their finite elements, summed as long doubles
optim/<case>.pt                        a model and its AdamW, healthy or with the one defect that the case is named for
diff/a.pt, diff/b.pt                   two dicts whose tensors differ each in one way; expected.json: by how much
ties.pt                                views of one storage, some of them one tensor under two names; others overlap
accelerate/                            one state as accelerate saves it: two DCP folders, two ranks; expected.json
"""
import copy
import hashlib
import json
import os
import tempfile

import numpy as np
import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


def at(*names):
    path = os.path.join(HERE, *names)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def write_json(data, *names):
    with open(at(*names), "w") as f:
        json.dump(data, f, indent=1)
        f.write("\n")


# ---------------------------------------------------------------- stat
def stat_tensors():
    g = torch.Generator().manual_seed(7)
    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    special = normal(6, 5)
    special[1, 2] = float("nan")
    special[4, 4] = float("nan")
    special[0, 3] = float("inf")
    special[2, 0] = -float("inf")
    fp16 = normal(40).to(torch.float16)
    fp16[3] = 5e-8  # subnormal
    wide = normal(50).float()
    wide[7], wide[8], wide[9] = 1e-41, 3.4e38, 7e4  # subnormal; Inf in bfloat16; Inf in float16
    wide[10] = 1e-9  # zero in float16
    return {
        "offset64": normal(1000) * 1e-3 + 1e6,  # a naive sum of squares loses everything
        "long32": (normal(90, 101) * 3 + 0.25).float(),  # several blocks under a small limit
        "bf16": normal(33).to(torch.bfloat16),
        "fp16": fp16,
        "wide32": wide,
        "e4m3": normal(16, 4).to(torch.float8_e4m3fn),
        "e5m2": normal(16, 4).to(torch.float8_e5m2),
        "int8": torch.randint(-128, 128, (77,), generator=g, dtype=torch.int8),
        "uint8": torch.randint(0, 256, (9, 9), generator=g, dtype=torch.uint8),
        "int64": torch.tensor([-(2**62), 5, 2**53 + 1, 2**40]),
        "bool": torch.tensor([True, False, True, True]),
        "complex64": torch.complex(normal(12), normal(12)).to(torch.complex64),
        "special": special,
        "only_nan": torch.full((3,), float("nan")),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
        "constant": torch.full((4, 4), -1.5),
        "zeros": torch.zeros(3, 7),
        "two": torch.tensor([1.0, 2.0], dtype=torch.float64),
    }


def stat_of(t):
    x = (t.abs() if t.is_complex() else t).to(torch.float64).numpy().ravel()
    if t.is_complex():
        parts = torch.view_as_real(t).double().numpy()
        x = np.hypot(parts[..., 0], parts[..., 1]).ravel()
    ok = x[np.isfinite(x)]
    first = lambda mask: int(np.argmax(mask)) if mask.any() else None
    out = dict(count=x.size, finite=ok.size, nan=int(np.isnan(x).sum()), pos_inf=int((x == np.inf).sum()),
               neg_inf=int((x == -np.inf).sum()), zeros=int((ok == 0).sum()),
               first_nan=first(np.isnan(x)), first_inf=first(np.isinf(x)))
    exact = torch.from_numpy(ok)
    half, brain = exact.to(torch.float16), exact.to(torch.float32).to(torch.bfloat16)
    out["outside_fp16"] = int((half.isinf() | ((half == 0) & (exact != 0))).sum())
    out["outside_bf16"] = int(brain.isinf().sum())
    tiny = torch.finfo(t.dtype).smallest_normal if t.is_floating_point() else 0.0
    out["subnormal"] = int(((np.abs(ok) < tiny) & (ok != 0)).sum())
    if not ok.size:
        return out
    long = ok.astype(np.longdouble)
    mean = long.mean()
    out.update(min=float(ok.min()), max=float(ok.max()), mean=float(mean), std=float(np.sqrt(((long - mean) ** 2).mean())),
               l1=float(np.abs(long).sum()), l2=float(np.sqrt((long**2).sum())), abs_max=float(np.abs(ok).max()),
               quantiles=[float(q) for q in np.quantile(ok, [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])],
               histogram=[int(n) for n in np.histogram(ok, bins=32, range=(ok.min(), ok.max()))[0]] if ok.min() < ok.max() else None)
    if t.dim() == 2 and ok.size == x.size:
        out["row_norms"] = [float(np.sqrt((row**2).sum())) for row in long.reshape(t.shape)]
    return out


def make_stat():
    tensors = stat_tensors()
    torch.save(tensors, at("stat", "tensors.pt"))
    write_json({name: stat_of(t) for name, t in tensors.items()}, "stat", "expected.json")


# ---------------------------------------------------------------- optim
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(7, 7), requires_grad=False)
        self.first = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def trained(make_optimizer, steps=5):
    torch.manual_seed(11)
    net = Net()
    optimizer = make_optimizer([p for p in net.parameters() if p.requires_grad])
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(6, 3)).pow(2).sum().add(0.1 * net.norm.bias.sum()).backward()
        optimizer.step()
    return {"model": net.state_dict(), "optim": optimizer.state_dict()}


# ids: 0 first.weight [4,3], 1 first.bias [4], 2 norm.weight [4], 3 norm.bias [4], 4 last.weight [2,4], 5 last.bias [2]
def nan(s): s[0]["exp_avg"][1, 2] = float("nan")
def inf(s): s[1]["exp_avg_sq"][3] = float("inf")
def negative(s): s[2]["exp_avg_sq"][2] = -0.5
def reset_step(s): s[3]["step"].zero_()
def zeroed(s): s[4]["exp_avg_sq"].zero_()
def half_missing(s): del s[5]["exp_avg_sq"]


def make_optim():
    adamw = lambda ps: torch.optim.AdamW(ps, lr=1e-2, betas=(0.9, 0.95), foreach=False)
    healthy = trained(adamw)
    torch.save(healthy, at("optim", "healthy.pt"))
    defects = [nan, inf, negative, reset_step, zeroed, half_missing]
    for defect in defects:
        sick = copy.deepcopy(healthy)
        defect(sick["optim"]["state"])
        torch.save(sick, at("optim", defect.__name__ + ".pt"))
    sick = copy.deepcopy(healthy)
    for defect in defects:
        defect(sick["optim"]["state"])
    torch.save(sick, at("optim", "all_six.pt"))
    sgd = trained(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=False))
    sgd["optim"]["state"][4]["momentum_buffer"][0, 1] = float("nan")
    torch.save(sgd, at("optim", "sgd_nan.pt"))
    group_step = copy.deepcopy(healthy)  # as Apex and Transformer Engine keep it
    for state in group_step["optim"]["state"].values():
        del state["step"]
    group_step["optim"]["param_groups"][0]["step"] = 5
    torch.save(group_step, at("optim", "group_step.pt"))
    torch.save(trained(adamw, steps=9), at("optim", "later.pt"))
    write_json(updates(healthy), "optim", "updates.json")


def updates(state):
    """|lr m^ / (sqrt(v^) + eps)| / |w| of every parameter, in float64."""
    names = [n for n, _ in Net().named_parameters() if n != "frozen"]
    group = state["optim"]["param_groups"][0]
    (b1, b2), out = group["betas"], {}
    for i, name in enumerate(names):
        s = {k: v.double() for k, v in state["optim"]["state"][i].items()}
        t, w = s["step"].item(), state["model"][name].double()
        update = group["lr"] * (s["exp_avg"] / (1 - b1**t)) / ((s["exp_avg_sq"] / (1 - b2**t)).sqrt() + group["eps"])
        out[name] = (update.norm() / w.norm()).item()
    return out


# ---------------------------------------------------------------- diff
def make_diff():
    g = torch.Generator().manual_seed(3)
    base = torch.randn(5, 7, generator=g)
    ulp = base.clone()
    ulp[2, 3] = torch.nextafter(ulp[2, 3], torch.tensor(float("inf")))
    near = base + 1e-4 * torch.randn(5, 7, generator=g)
    holes = base.clone()
    holes[0, 1] = float("nan")
    other_nan = holes.clone()
    other_nan.view(torch.int32)[0, 1] = 0x7FC00001  # another NaN
    infinite = base.clone()
    infinite[4, 6] = float("inf")
    a = dict(same=base, ulp=base, near=base, nan_bits=holes, nan_one=base, inf_one=infinite, kind=base, shape=base,
             gone=base, zero=torch.tensor([0.0]), lr=0.1, seed=4, left=1)
    b = dict(same=base.clone(), ulp=ulp, near=near, nan_bits=other_nan, nan_one=holes, inf_one=base,
             kind=base.to(torch.bfloat16), shape=base.reshape(7, 5), new=base, zero=torch.tensor([-0.0]), lr=0.2, seed=4,
             right=1)
    torch.save(a, at("diff", "a.pt"))
    torch.save(b, at("diff", "b.pt"))
    x, y = a["near"].double().numpy(), b["near"].double().numpy()
    d = np.abs(x - y)
    write_json(dict(count=int((a["near"] != b["near"]).sum()), max_abs=d.max(), max_rel=(d / np.maximum(np.abs(x), np.abs(y))).max(),
                    l2=np.sqrt((d**2).sum()), relative_l2=np.sqrt((d**2).sum() / (x**2).sum()),
                    cosine=(x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())), "diff", "expected.json")


# ---------------------------------------------------------------- accelerate
def save_parts(rank, folder, init):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    dist.init_process_group("gloo", init_method="file://" + init, rank=rank, world_size=2)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    model, optim = get_state_dict(net, optimizer)
    os.chdir(folder)  # .metadata records the path as given
    for name, part in (("pytorch_model_fsdp_0", {"model": model}), ("optimizer_0", {"optimizer": optim})):
        dcp.save(part, storage_writer=dcp.FileSystemWriter(name), planner=dcp.DefaultSavePlanner())
    full = {"model": model, "optimizer": optim}
    dist.barrier()
    if rank == 0:
        torch.save({"last_epoch": 1}, "scheduler.bin")
    entries = {}
    for name, t in sorted(leaves(full)):
        t = t.full_tensor() if hasattr(t, "full_tensor") else t
        entries[name] = [str(t.dtype)[6:], list(t.shape), hashlib.sha256(t.detach().contiguous().numpy().tobytes()).hexdigest()]
    if rank == 0:
        write_json(entries, "accelerate", "expected.json")
    dist.barrier()
    dist.destroy_process_group()


def leaves(value, prefix=""):
    for key, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, prefix + str(key) + ".")
        elif isinstance(item, torch.Tensor):
            yield prefix + str(key), item


def make_accelerate():
    import torch.multiprocessing as mp
    os.makedirs(at("accelerate", "checkpoint"), exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(save_parts, args=(at("accelerate", "checkpoint"), os.path.join(scratch, "init")), nprocs=2)


# ---------------------------------------------------------------- ties
def make_ties():
    x, square = torch.arange(10.0), torch.arange(16.0).reshape(4, 4)
    torch.save({
        "whole": x, "low": x[:5], "high": x[5:], "even": x[::2], "low_again": x[0:5], "folded": x.view(2, 5),
        "square": square, "turned": square.t(), "turned_again": square.t(), "diagonal": square.diagonal(), "row": square[0],
        "whole_again": x, "equal": x.clone(),
        "rows": x[:5].expand(3, 5), "rows_again": x[:5].expand(3, 5),
    }, at("ties.pt"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_stat()
    make_optim()
    make_diff()
    make_ties()
    make_accelerate()
