"""A small GPT trained by ours and by PyTorch's FSDP2, from the same values on the same words: CPU time of a step (user and system, which
a busy machine leaves alone), wall time (which it does not), memory at the peak, and the losses, which must agree.

    bench/fsdp_gpt.py BUILD/bin/fsdp_gpt [--rounds 5] [--steps 16] [--layers 4] [--modes full,full_beside,grad_op,bf16,bf16_offload] [--processes 1,2,4]
    bench/fsdp_gpt.py BUILD/bin/fsdp_gpt --smoke    two short runs: only the losses are judged"""
import argparse, json, os, statistics, sys, tempfile, time

from launch import launch

WIDTH, HEADS, WORDS, CONTEXT = 256, 8, 512, 64
MODES = ("full", "full_beside", "grad_op", "bf16", "bf16_offload")


def make_model(layers):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            b, t, _ = x.shape
            p = self.qkv(self.n1(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(p[0], p[1], p[2], is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(b, t, WIDTH))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = [Block() for _ in range(layers)]
            for i, block in enumerate(self.blocks):
                setattr(self, f"block{i}", block)
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, ids):
            x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt()


def rank_main(mode, init, layers, rows, steps):
    """One rank of FSDP2's training."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model = make_model(layers)
    model.load_state_dict(torch.load(init + ".pt"))
    if mode == "plain_bf16":
        model.to(torch.bfloat16)
    if not mode.startswith("plain"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        dist.init_process_group("gloo")
        kinds = dict(mesh=init_device_mesh("cpu", (world,)), reshard_after_forward=mode != "grad_op")
        if mode.startswith("bf16"):
            kinds["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        if mode == "bf16_offload":
            kinds["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        for block in model.blocks:
            fully_shard(block, **kinds)
        fully_shard(model, **kinds)
        if mode == "full_beside":
            model._set_unshard_async_op(True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    walls, cpus, losses = [], [], []
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins here
    for step in range(steps):
        first = (step * world + rank) * rows * CONTEXT
        at = torch.arange(first, first + rows * CONTEXT + 1)
        text = (at * 7 + at // 11 * 5) % WORDS
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(text[:-1].view(rows, CONTEXT)).float().view(-1, WORDS), text[1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        walls.append(time.perf_counter() - wall), cpus.append(time.process_time() - cpu), losses.append(loss.item())
    warm = len(walls) // 3
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(json.dumps(dict(wall=statistics.median(walls[warm:]), cpu=statistics.median(cpus[warm:]), losses=losses, rss=peak)), flush=True)
    if not mode.startswith("plain"):
        dist.barrier(), dist.destroy_process_group()


def make_init(path, layers):
    import torch
    import torch.distributed.checkpoint as dcp
    torch.manual_seed(1)
    model = make_model(layers)
    dcp.save({"model": model.state_dict()}, checkpoint_id=path, no_dist=True)
    torch.save(model.state_dict(), path + ".pt")


def run(command, processes):
    """The slowest rank's wall time, the mean CPU time, the most memory, every rank's losses."""
    outs = launch(command, processes, timeout=300, LOCAL_WORLD_SIZE=str(processes))
    return dict(wall=max(o["wall"] for o in outs), cpu=statistics.mean(o["cpu"] for o in outs), rss=max(o["rss"] for o in outs) / 1024,
                losses=[o["losses"] for o in outs])


def far(ours, theirs):
    return max(abs(x - y) for a, b in zip(ours, theirs, strict=True) for x, y in zip(a, b, strict=True))


def compare(args, mode, processes, init):
    """Rounds of both, one after the other: (ours, FSDP2's) of each round."""
    numbers = [init, args.layers, args.rows, args.steps]
    pairs = []
    for _ in range(args.rounds):
        ours = run([args.binary, mode, *numbers], processes)
        theirs = run([sys.executable, __file__, "--rank", mode, *numbers], processes)
        off = far(ours["losses"], theirs["losses"])
        if off > (0.05 if "bf16" in mode else 1e-4):
            sys.exit(f"{mode} on {processes} processes: losses differ by {off}")
        pairs.append((ours, theirs))
    return pairs


def row(mode, processes, pairs):
    def ratio(what):
        all = sorted(theirs[what] / ours[what] for ours, theirs in pairs)
        return f"{statistics.median(all):.2f} ({all[0]:.2f} - {all[-1]:.2f})"

    def mean(side, what):
        return statistics.median(pair[side][what] for pair in pairs)
    print(f"| {mode} | {processes} | {1e3 * mean(0, 'cpu'):.0f} / {1e3 * mean(1, 'cpu'):.0f} | {ratio('cpu')} | {ratio('wall')} | "
          f"{mean(0, 'rss'):.0f} / {mean(1, 'rss'):.0f} | {ratio('rss')} |", flush=True)


def main():
    if sys.argv[1:2] == ["--rank"]:
        mode, init, *numbers = sys.argv[2:]
        return rank_main(mode, init, *map(int, numbers))
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--rows", type=int, default=2)
    p.add_argument("--modes", default=",".join(MODES))
    p.add_argument("--processes", default="1,2,4")
    p.add_argument("--smoke", action="store_true")
    args = p.parse_args()
    if args.smoke:
        args.rounds, args.steps, args.layers, args.rows, args.processes, args.modes = 1, 3, 1, 1, "2", "full,bf16_offload"
    with tempfile.TemporaryDirectory() as folder:
        init = os.path.join(folder, "init")
        make_init(init, args.layers)
        print("| mode | processes | CPU ms a step, ours / FSDP2 | FSDP2 / ours | wall, FSDP2 / ours | peak MiB, ours / FSDP2 | FSDP2 / ours |")
        print("|---|---|---|---|---|---|---|")
        plain = {}
        for mode in () if args.smoke else ("plain", "plain_bf16"):
            plain[mode] = compare(args, mode, 1, init)
            row(mode, 1, plain[mode])
        for mode in args.modes.split(","):
            for processes in map(int, args.processes.split(",")):
                pairs = compare(args, mode, processes, init)
                row(mode, processes, pairs)
                if base := plain.get("plain_bf16" if "bf16" in mode else "plain"):
                    over = [statistics.median(r[side]["cpu"] for r in pairs) - statistics.median(r[side]["cpu"] for r in base) for side in (0, 1)]
                    print(f"  over the plain module: {1e3 * over[0]:.1f} / {1e3 * over[1]:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
