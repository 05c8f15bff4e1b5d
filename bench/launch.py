"""Starts a benchmark's ranks as a launcher does."""
import json, os, socket, subprocess, sys


def launch(command, ranks, timeout, **variables):
    """The last line that each rank prints, as JSON. A rank that fails ends the benchmark with what it said."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = list(map(str, command))
    started = []
    for rank in range(ranks):
        env = dict(os.environ, OMP_NUM_THREADS="1", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), **variables)
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outs = []
    try:
        for p in started:
            out, err = p.communicate(timeout=timeout)
            if p.returncode:
                sys.exit(f"{' '.join(command)}: exit {p.returncode}\n{err[-2000:]}")
            outs.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for p in started:
            p.kill()
    return outs
