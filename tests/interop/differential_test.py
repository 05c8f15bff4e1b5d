"""Same bytes, same meaning: files that are changed at random are read by PyTorch (torch.load with weights_only, else without; for
.metadata as DCP unpickles it; for folders dcp.load), or by the safetensors library or h5py, and by us. What both read must be equal,
tensor by tensor and value by value. We may refuse what they read, and the other way round; of safetensors we must refuse what the library
refuses.

    differential_test.py [--count N] [--seconds S] [--seed N] [--kind torch|dcp|folder|safetensors|hdf5] [--keep FOLDER]

Without arguments: a fixed list of mutations, as the gate runs it. Reads happen in child processes, so that a crash of PyTorch's
counts as a refusal. --keep saves what differs."""
import argparse, os, pathlib, random, resource, select, signal, struct, subprocess, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from differential_mutations import Mutations  # noqa: E402

BIN = pathlib.Path(os.environ.get("TESSERA_BIN", pathlib.Path(__file__).resolve().parents[2] / "build" / "bin"))
KINDS = (("torch", 3000), ("dcp", 1000), ("folder", 1000), ("safetensors", 3000), ("hdf5", 1500))  # and how many files the gate reads
DIFFERED = (("hdf5", "1795867646", (1048, 1963, 2199, 6809, 7443)),)  # kind, seed, numbers: read once more by the gate
BATCH = 500
SECONDS_A_FILE = 20


def batch_of(kind, seed, first, count):
    """The mutations numbered first, first + 1, ...: each depends on its own number alone."""
    mutations = Mutations(kind)
    for i in range(first, first + count):
        yield i, mutations.make(random.Random(f"{seed}/{kind}/{i}"))


class Reader:
    """differential_reader, which reads in another process."""

    def __init__(self):
        self.process = subprocess.Popen([str(BIN / "differential_reader")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, kind, data):
        self.process.stdin.write(struct.pack("<I", len(data) + 1) + kind[0].encode() + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(4)
        if len(head) < 4:
            raise AssertionError(f"differential_reader ended: {self.process.wait()}")
        answer = self.process.stdout.read(struct.unpack("<I", head)[0])
        read = answer[:1] == b"r"
        return read, answer[1:].decode(errors="surrogatepass" if read else "replace")


def run_batch(kind, seed, first, count, results):
    """In a child: a line per difference, and one with the counts after each file."""
    import differential_oracle as oracle
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    reader = Reader()
    both = ours = 0
    for i, data in batch_of(kind, seed, first, count):
        results.write(f"at {i}\n")
        results.flush()
        we, text = reader.read(kind, data)
        they, expected = oracle.read(kind, data) if we else (False, "")
        both += we and they
        ours += we
        if oracle.differ(kind, (we, text), (they, expected)):
            results.write(f"differs {i} {text[:3000]!r} {expected[:3000]!r}\n")
    results.write(f"counts {both} {ours}\n")
    results.flush()


def child(kind, seed, first, count):
    """Runs a batch apart; returns (lines, the number at which it died or None)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        status = 1
        try:
            with os.fdopen(write, "w") as results:
                run_batch(kind, seed, first, count, results)
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    lines, at, deadline = [], first, time.monotonic() + SECONDS_A_FILE
    with os.fdopen(read) as results:
        while True:
            if not select.select([results], [], [], max(0, deadline - time.monotonic()))[0]:
                os.kill(pid, signal.SIGKILL)
                break
            line = results.readline()
            if not line:
                break
            if line.startswith("at "):
                at, deadline = int(line[3:]), time.monotonic() + SECONDS_A_FILE
            else:
                lines.append(line.rstrip("\n"))
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        raise AssertionError(f"the harness failed at number {at} (seed {seed})")
    return lines, at if status else None


def run(kind, seed, count, seconds, keep):
    import differential_oracle  # before the forks, once, as are the files that are changed
    if kind in ("dcp", "folder"):
        import torch.distributed.checkpoint
    Mutations(kind)
    totals, differences, crashes, done = [0, 0], [], 0, 0
    end = time.monotonic() + seconds if seconds else None
    while done < count and (end is None or time.monotonic() < end):
        size = min(BATCH, count - done)
        lines, died = child(kind, seed, done, size)
        for line in lines:
            if line.startswith("counts "):
                totals = [a + int(b) for a, b in zip(totals, line.split()[1:])]
            else:
                # PyTorch may take a malformed sparse tensor once in a few times, as memory happens to be.
                number = int(line.split()[1])
                again = [child(kind, seed, number, 1)[0] for _ in range(3)]
                if all(any(not other.startswith("counts ") for other in lines) for lines in again):
                    differences.append(line)
                else:
                    line += " (not every time: not counted)"
                print(f"{kind} {line}", flush=True)
        crashes += died is not None
        done = done + size if died is None else died + 1
    for line in differences if keep else []:
        number = int(line.split()[1])
        pathlib.Path(keep).mkdir(parents=True, exist_ok=True)
        for i, data in batch_of(kind, seed, number, 1):
            (pathlib.Path(keep) / f"{kind}_{seed}_{i}.bin").write_bytes(data)
    both, ours = totals
    print(f"{kind}, seed {seed}: {done} mutations, {both} read by both, {ours} by us, {len(differences)} differences, "
          f"{crashes} ended the other reader")
    return done, both, len(differences)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", default="gate")
    parser.add_argument("--kind", choices=[kind for kind, _ in KINDS])
    parser.add_argument("--keep")
    args = parser.parse_args()
    failed = 0
    for kind, usual in KINDS:
        if args.kind and args.kind != kind:
            continue
        count = args.count or (10**12 if args.seconds else usual)
        done, both, differences = run(kind, args.seed, count, args.seconds, args.keep)
        failed += differences
        if both * 20 < done:
            raise SystemExit(f"only {both} of {done} were read by both: the mutations have lost their power")
    for kind, seed, numbers in DIFFERED if args.seed == "gate" else ():
        lines = [line for number in numbers for line in child(kind, seed, number, 1)[0] if not line.startswith("counts ")]
        print("\n".join([f"{kind}, seed {seed}: {len(numbers)} that once differed, {len(lines)} differences"] + lines))
        failed += len(lines)
    if failed:
        raise SystemExit(f"{failed} differences")


if __name__ == "__main__":
    main()
