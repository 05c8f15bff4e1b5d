"""CPU cost of sharding in one training step, ours beside PyTorch's FSDP2, in the same run: a chain of small units over a
group that talks to nobody (PyTorch: its fake process group), less the same chain unsharded.

    bench/fsdp_overhead.py BUILD/bin/fsdp_overhead [--parameters 10] [--units 100] [--rounds 5]"""
import argparse, json, statistics, subprocess, sys, time


def fsdp2(world_size, parameters, units, steps, rounds):
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.ones(1024) for _ in range(parameters))

        def forward(self, x):
            for weight in self.weights:
                x = x * weight
            return x

    def chain():
        return torch.nn.Sequential(*[Block() for _ in range(units)])

    plain, sharded = chain(), chain()
    for block in sharded:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)

    def measure(module, n):
        x = torch.ones(1024, requires_grad=True)
        start = time.process_time()
        for _ in range(n):
            module(x).sum().backward()
            module.zero_grad()
        return (time.process_time() - start) / n / units * 1e6

    measure(plain, 3), measure(sharded, 3)
    runs = [measure(sharded, steps) - measure(plain, steps) for _ in range(rounds)]
    dist.destroy_process_group()
    return statistics.median(runs), min(runs), max(runs)


def ours(binary, world_size, args):
    out = subprocess.run([binary, str(world_size), str(args.parameters), str(args.units)], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("--parameters", type=int, default=10)
    p.add_argument("--units", type=int, default=100)
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    at = {w: ours(args.binary, w, args) for w in (8, 4096)}
    for w, r in at.items():
        print(f"ours, {w} ranks: {r['overhead_us']:.1f} us per unit and step ({r['overhead_us_min']:.1f} to {r['overhead_us_max']:.1f}) "
              f"on top of {r['plain_us']:.1f}")
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("PyTorch is not installed: FSDP2 is not measured")
    median, low, high = fsdp2(8, args.parameters, args.units, 3, args.rounds)
    print(f"FSDP2, 8 ranks: {median:.1f} us per unit and step ({low:.1f} to {high:.1f})")
    print(f"FSDP2 / ours: {median / at[8]['overhead_us']:.1f} (promise: 15); 4096 ranks / 8 ranks: "
          f"{at[4096]['overhead_us'] / at[8]['overhead_us']:.2f} (promise: 1.1)")


if __name__ == "__main__":
    main()
