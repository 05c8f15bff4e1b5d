"""How much of a step's collectives passes beside compute over links of a known speed: four ranks in a network namespace of their own,
whose loopback tc holds to a rate; compute sleeps. Ours without and with the communication thread, FSDP2 without and with its async
gathers; and fsdp-simulate's step, from latency and bandwidth fitted to single collectives over the same link, and from what the
unsharded model computes on as many processes.

    bench/fsdp_overlap.py BUILD/bin [--gbit 2] [--ranks 4] [--steps 9] [--quick | --model]     needs root, ip, tc and unshare
Exit 77: no such namespace can be made here."""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile, time

from launch import launch

INSIDE = "FSDP_OVERLAP_INSIDE"


def enter(gbit):
    """Starts this again in a namespace with a shaped loopback."""
    shape = f"ip link set lo up && tc qdisc add dev lo root tbf rate {gbit}gbit burst 512kb latency 200ms"
    for unshare in (["unshare", "-n"], ["unshare", "-rn"]):
        if subprocess.run([*unshare, "sh", "-c", shape], capture_output=True).returncode == 0:
            os.environ[INSIDE] = "1"
            os.execvp(unshare[0], [*unshare, "sh", "-c", f'{shape} && exec "$@"', "sh", sys.executable, *sys.argv])
    print("skipped: no network namespace with tc here")
    sys.exit(77)


def run(command, ranks):
    """What the slowest rank prints."""
    outs = launch(command, ranks, timeout=240, GLOO_SOCKET_IFNAME="lo")
    return {key: max(o[key] for o in outs) for key in outs[0]}


def fsdp2_rank(asynchronous, units, numel, milliseconds, steps):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight):
            context.numel = weight.numel()
            time.sleep(milliseconds / 1e3)
            return x + weight[0]

        @staticmethod
        def backward(context, grad):
            time.sleep(2 * milliseconds / 1e3)
            return grad, grad.sum().view(1).expand(context.numel)

    class Layer(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(size))

        def forward(self, x):
            return Sleep.apply(x, self.weight)

    model = torch.nn.Sequential(*[Layer(numel // 2 if i % 2 else numel) for i in range(units)])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if asynchronous:
        model._set_unshard_async_op(True)
        layers = list(model)
        for one, after in zip(layers, layers[1:]):
            one.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([one])
    took = []
    for _ in range(steps + 2):
        dist.barrier()
        begin = time.perf_counter()
        model.zero_grad()
        model(torch.ones(1)).sum().backward()
        took.append(time.perf_counter() - begin)
    print(json.dumps({"step": statistics.median(took[2:])}), flush=True)
    dist.destroy_process_group()


def fit(bin, ranks, sizes):
    """Latency of a hop and bandwidth, as the model of docs/simulate.md has them, by least squares of relative errors."""
    import numpy as np
    rows, seconds = [], []
    for numel in sizes:
        probe = run([bin / "fsdp_overlap", "probe", numel, 7], ranks)
        for what in ("gather", "reduce"):
            rows.append(np.array([ranks - 1, (ranks - 1) / ranks * 4 * numel]) / probe[what])
            seconds.append(1.0)
    latency, per_byte = np.linalg.lstsq(np.array(rows), np.array(seconds), rcond=None)[0]
    return max(latency, 0.0), 1 / per_byte


def computes(bin, ranks, units, numel, milliseconds, steps):
    """Seconds of a unit's forward, and of its backward: to sleep, and to make the gradient of each float."""
    plain = run([bin / "fsdp_overlap", "plain", units, numel, milliseconds, steps], ranks)
    floats = [numel // 2 if i % 2 else numel for i in range(units)]
    a_float = (plain["backward"] - units * 2 * milliseconds / 1e3) / sum(floats)
    return [(plain["forward"] / units, 2 * milliseconds / 1e3 + a_float * each) for each in floats]


def simulated(bin, ranks, link, units, numel, compute):
    job = {"ranks": ranks, "ranks_per_node": ranks, "intra": {"latency": link[0], "bandwidth": link[1]}, "flops_per_second": 1,
           "parameter_bytes": 4, "reduce_bytes": 4, "forward_prefetch": True, "backward_prefetch": "pre",
           "separate_reduce_scatter_group": False,
           "units": [{"bytes": 4 * (numel // 2 if i % 2 else numel), "flops": forward, "backward_flops": backward}
                     for i, (forward, backward) in enumerate(compute)], "root": {}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        out = subprocess.run([bin / "fsdp-simulate", file.name], capture_output=True, text=True, check=True).stdout
    return float(out.split()[1]) / 1e3


def main():
    if sys.argv[1:2] == ["--rank"]:
        return fsdp2_rank(*map(int, sys.argv[2:]))
    p = argparse.ArgumentParser()
    p.add_argument("bin", type=pathlib.Path)
    p.add_argument("--gbit", type=float, default=2)
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--steps", type=int, default=9)
    p.add_argument("--quick", action="store_true", help="one configuration, ours alone: fails below 1.3")
    p.add_argument("--model", action="store_true", help="the thread's step and the simulated one alone")
    args = p.parse_args()
    if INSIDE not in os.environ:
        enter(args.gbit)
    if args.quick:
        ours = [run([args.bin / "fsdp_overlap", mode, 6, 1 << 19, 18, 7], args.ranks)["step"] for mode in ("serial", "thread")]
        print(f"serial {1e3 * ours[0]:.0f} ms, thread {1e3 * ours[1]:.0f} ms: {ours[0] / ours[1]:.2f}")
        sys.exit(0 if ours[0] / ours[1] >= 1.3 else 1)
    link = fit(args.bin, args.ranks, [1 << k for k in (14, 16, 18, 19, 20, 21)])
    print(f"fitted: {1e6 * link[0]:.0f} us a hop, {link[1] / 1e6:.1f} MB/s of each rank")
    columns = ["units", "floats", "compute ms", "thread ms", "simulated ms", "off"]
    if not args.model:
        columns += ["serial ms", "serial / thread", "FSDP2 ms", "FSDP2 async ms"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    off = []
    for units, numel, ms in ((6, 1 << 20, 6), (6, 1 << 20, 12), (6, 1 << 20, 24), (6, 1 << 19, 6), (6, 1 << 19, 12), (12, 1 << 19, 4),
                             (12, 1 << 18, 4), (12, 1 << 18, 8), (4, 1 << 21, 20), (4, 1 << 21, 40)):
        def ours(mode):
            return run([args.bin / "fsdp_overlap", mode, units, numel, ms, args.steps], args.ranks)["step"]
        thread = ours("thread")
        model = simulated(args.bin, args.ranks, link, units, numel, computes(args.bin, args.ranks, units, numel, ms, args.steps))
        off.append(model / thread - 1)
        row = [units, numel, ms, f"{1e3 * thread:.0f}", f"{1e3 * model:.0f}", f"{100 * off[-1]:+.0f} %"]
        if not args.model:
            serial = ours("serial")
            theirs = [run([sys.executable, __file__, "--rank", a, units, numel, ms, args.steps], args.ranks)["step"] for a in (0, 1)]
            row += [f"{1e3 * serial:.0f}", f"{serial / thread:.2f}", *(f"{1e3 * each:.0f}" for each in theirs)]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    off = [abs(each) for each in off]
    print(f"off by {100 * statistics.median(off):.1f} % at the median, {100 * max(off):.0f} % at most")


if __name__ == "__main__":
    main()
