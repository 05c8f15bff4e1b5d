"""The C++ runtime and PyTorch's own FSDP2 train the same model, from the same weights, on the same data: the same losses and
parameters after 8 clipped AdamW steps, on 1, 2 and 4 processes."""
import json, os, socket, subprocess, tempfile
from support import BIN, done
import torch
from common import spawn

STEPS = 8


def formula(shape, salt):
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    return (((index * 7919 + salt * 104729) % 1000 - 500).double() / 1000).float().view(shape)


class Block(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.a, self.b = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.b(torch.nn.functional.gelu(self.a(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(19, 19)
        for i in range(3):
            setattr(self, f"blocks{i}", Block(19, 33))
        self.head = torch.nn.Linear(19, 5)

    def forward(self, x):
        x = self.stem(x)
        for i in range(3):
            x = getattr(self, f"blocks{i}")(x)
        return self.head(x)


def theirs(rank, world, strategy, precision, report):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    net = Net()
    with torch.no_grad():
        for salt, p in enumerate(net.parameters(), 1):
            p.copy_(formula(p.shape, salt) * 0.5)
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("r", "s")) if strategy == "hybrid" else init_device_mesh("cpu", (world,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if precision == "bf16" else MixedPrecisionPolicy()
    for module in (net.blocks0, net.blocks1, net.blocks2, net):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy != "shard_grad_op")
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
    rows = 24 // world
    x, y = (formula((24, n), salt)[rank * rows:(rank + 1) * rows] for n, salt in ((19, 101), (5, 102)))
    losses = []
    for _ in range(STEPS):
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x).float(), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    full = {n: p.full_tensor().detach().reshape(-1).tolist() for n, p in net.named_parameters()}
    if rank == 0:
        with open(report, "w") as f:
            json.dump({"losses": losses, "parameters": full}, f)


def ours(world, layout, strategy, precision, *more):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = []
    for rank in range(world):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([BIN / "fsdp_peer_train", layout, strategy, precision, str(STEPS), *more], env=env, stdout=subprocess.PIPE, text=True))
    outs = [p.communicate(timeout=120)[0] for p in ranks]
    if any(p.returncode for p in ranks):
        raise SystemExit(f"fsdp_peer_train exited with {[p.returncode for p in ranks]}")
    return json.loads(outs[0])


def far(a, b, relative, absolute=0.0):
    return max((abs(x - y) - absolute) / max(abs(y), 1e-12) for x, y in zip(a, b, strict=True)) > relative


if __name__ == "__main__":
    count = 0
    for world, strategy, precision in ((1, "full_shard", "fp32"), (2, "full_shard", "fp32"), (2, "shard_grad_op", "fp32"),
                                       (4, "hybrid", "fp32"), (2, "full_shard", "bf16")):
        with tempfile.TemporaryDirectory() as d:
            report = os.path.join(d, "report.json")
            spawn(theirs, world, strategy, precision, report)
            want = json.load(open(report))
        for layout in ("flat", "rows"):
            got = ours(world, layout, strategy, precision)
            what = f"{world} processes, {strategy}, {precision}, {layout}"
            relative = 1e-5 if precision == "fp32" else 1e-3
            if far(got["losses"], want["losses"], relative):
                raise SystemExit(f"{what}: losses {got['losses']}, FSDP2's {want['losses']}")
            if got["parameters"].keys() != want["parameters"].keys():
                raise SystemExit(f"{what}: other parameters: {sorted(got['parameters'].keys() ^ want['parameters'].keys())}")
            for name in want["parameters"]:
                if far(got["parameters"][name], want["parameters"][name], relative, absolute=relative):
                    raise SystemExit(f"{what}: parameter {name} differs")
            count += 1
    done(count, "trainings equal to PyTorch's FSDP2")
