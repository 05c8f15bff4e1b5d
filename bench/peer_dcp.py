"""What a PyTorch user runs today to change a checkpoint's world size offline: DCP loads everything and saves it, in one process; or
dcp_to_torch_save. Timed inside the process, imports excluded, durable at the end. usage: peer_dcp.py resave|torch_save SRC DST [THREADS]"""
import os
import resource
import sys
import time

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


def fsync_all(path):
    files = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def main(mode, source, target, threads=1):
    start = time.perf_counter()
    if mode == "resave":
        state = {}
        _load_state_dict(state, storage_reader=dcp.FileSystemReader(source), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(target, thread_count=int(threads)), no_dist=True)
    else:
        dcp_to_torch_save(source, target)
    fsync_all(target)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"seconds {seconds:.3f} rss_mib {usage.ru_maxrss / 1024:.0f} cpu {usage.ru_utime + usage.ru_stime:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
