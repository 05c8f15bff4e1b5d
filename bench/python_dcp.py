#!/usr/bin/env python3
"""tessera.torch against torch.distributed.checkpoint: the same state, the same run, four processes, a folder in memory.
    PYTHONPATH=python TESSERA_LIBRARY=build/bin/libtessera.so python3 bench/python_dcp.py [MIB] [ROUNDS]

One line each for save, async_save (until it returns) and load: median seconds of the slowest rank, and the growth of that rank's peak
memory; then ratios DCP / tessera."""
import multiprocessing, os, resource, shutil, statistics, sys, tempfile, time

RANKS = 4


def build(mib):
    """An FSDP2 model of `mib` MiB of weights with AdamW state: three times that."""
    import torch
    from torch.distributed.fsdp import fully_shard
    width = 1024
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(max(1, mib // 4))])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def rank_main(rank, meeting, folder, engine, verb, mib, out):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model, optimizer = build(mib)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer), "step": 1}
    if engine == "tessera":
        import tessera.torch as api
    else:
        api = dcp
    path = f"{folder}/{engine}"
    dist.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu = time.process_time()
    begin = time.perf_counter()
    if verb == "save":
        api.save(state, checkpoint_id=path)
    else:
        api.load(state, checkpoint_id=path)
    dist.barrier()
    seconds = time.perf_counter() - begin
    out.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - cpu))
    dist.destroy_process_group()


def measure(folder, engine, verb, mib):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "torch.distributed.fsdp"])
    out = context.Queue()
    with tempfile.TemporaryDirectory() as meeting:
        ranks = [context.Process(target=rank_main, args=(r, f"{meeting}/store", folder, engine, verb, mib, out)) for r in range(RANKS)]
        for each in ranks:
            each.start()
        rows = [out.get(timeout=300) for _ in ranks]
        for each in ranks:
            each.join()
    return max(row[0] for row in rows), max(row[1] for row in rows) / 1024, sum(row[2] for row in rows)


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    medians = {}
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        seen = {}
        for _ in range(rounds):
            for engine in ("dcp", "tessera"):  # interleaved
                shutil.rmtree(f"{folder}/{engine}", ignore_errors=True)
                for verb in ("save", "load"):
                    seen.setdefault((engine, verb), []).append(measure(folder, engine, verb, mib))
        for key, rows in seen.items():
            medians[key] = [statistics.median(column) for column in zip(*rows)]
            print(f"{key[0]:<8} {key[1]}  {medians[key][0]:.3f} s  +{medians[key][1]:.0f} MiB peak  {medians[key][2]:.2f} CPU s of all ranks")
    for verb in ("save", "load"):
        dcp, ours = medians["dcp", verb], medians["tessera", verb]
        print(f"{verb}: {dcp[0] / ours[0]:.1f} times as fast as DCP, {ours[1] / max(1, dcp[1]):.2f} of its extra memory, {dcp[2] / ours[2]:.1f} times less CPU; {3 * mib} MiB")


if __name__ == "__main__":
    main()
