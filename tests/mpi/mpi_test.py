"""The commands under mpirun, several processes on this host: the result is byte for byte one process', and whatever goes wrong on one
process ends all of them with nothing published. Leaves with 77 and the reason where mpirun or the plugin is absent."""
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
SAMPLES = pathlib.Path(__file__).resolve().parents[2] / "sample_checkpoints"
LAUNCH = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
# What a launcher around this test itself may have left.
PLAIN = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_"))}
TIMEOUT = 120


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def run(command, env=None, cwd=None, ranks=0):
    words = [str(word) for word in command]
    words = [*LAUNCH, "-n", str(ranks), *words] if ranks else words
    return subprocess.run(words, env=env or PLAIN, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT)


def expect(condition, what, done=None):
    if condition:
        return
    print(f"FAILED: {what}")
    if done is not None:
        print(f"exit {done.returncode}\nstdout: {done.stdout}\nstderr: {done.stderr}")
    sys.exit(1)


def write_safetensors(path, megabytes):
    """Tensors of several types and sizes, random bytes."""
    noise = random.Random(1)
    header, blobs, offset = {}, [], 0
    shapes = {"F32": [(1031, 257), (64,), (1,)], "BF16": [(515, 129)], "I64": [(33, 7)], "U8": [(1001,)], "F64": [(129, 65)]}
    sizes = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1, "F64": 8}
    number = 0
    while offset < megabytes << 20:
        for dtype, choices in shapes.items():
            for shape in choices:
                count = sizes[dtype]
                for extent in shape:
                    count *= extent
                header[f"layers.{number}.w"] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + count]}
                blobs.append(noise.randbytes(count))
                offset += count
                number += 1
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def content(path):
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


def stages(folder):
    return [p for p in folder.iterdir() if ".tmp-" in p.name]


def same_as_one_process(work, source):
    dcp = SAMPLES / "dcp/fsdp2_w4/checkpoint"
    jobs = [
        ("reshard", dcp, ["--world-size", "3"], "out"),
        ("reshard", dcp, ["--world-size", "8"], "out"),
        ("reshard", SAMPLES / "dcp/fsdp2_w2_zstd/checkpoint", ["--world-size", "3"], "out"),
        ("convert", source, ["--to", "torch-dcp", "--world-size", "5"], "out"),
        ("convert", source, ["--to", "torch-dcp", "--world-size", "3", "--dtype", "bf16"], "out"),
        ("convert", source, ["--to", "safetensors", "--max-shard-size", "3MiB"], "out"),
        ("convert", source, [], "out.safetensors"),
        ("convert", source, ["--verify"], "out.pt"),
        ("convert", dcp, [], "out.pt"),
        ("reshard", SAMPLES / "deepspeed/zero2_w4/checkpoint", ["--world-size", "3"], "out"),
    ]
    for number, (verb, src, flags, name) in enumerate(jobs):
        alone = work / f"alone{number}"
        alone.mkdir()
        done = run([BIN / f"ckpt-{verb}", src, alone / name, *flags])
        expect(done.returncode == 0, f"{verb} {flags} alone", done)
        wanted = content(alone / name)
        for ranks in (2, 4):
            together = work / f"together{number}_{ranks}"
            together.mkdir()
            done = run([BIN / f"ckpt-{verb}", src, together / name, *flags, "--format", "json"], ranks=ranks)
            expect(done.returncode == 0, f"{verb} {flags} by {ranks}", done)
            report = json.loads(done.stdout)  # one document: one process speaks
            expect(report["path"] or True, "a path", done)
            got = content(together / name)
            expect(got.keys() == wanted.keys(), f"{verb} {flags} by {ranks}: files {got.keys() ^ wanted.keys()}")
            for file in wanted:
                expect(got[file] == wanted[file], f"{verb} {flags} by {ranks}: {file} differs")
            expect(not stages(together), "no stage is left")
            shutil.rmtree(together)
        print(f"{verb} {' '.join(flags) or name}: {len(wanted)} files, {sum(map(len, wanted.values()))} bytes, alike by 1, 2 and 4")
        shutil.rmtree(alone)


def progress_of_all(work, source):
    """One process speaks, of the bytes of all; --dry-run tells the same as alone and writes nothing."""
    flags = ["--to", "torch-dcp", "--world-size", "3"]
    target = work / "told"
    alone = run([BIN / "ckpt-convert", source, target, *flags, "--dry-run", "--format", "json"])
    expect(alone.returncode == 0, "a dry run alone", alone)
    plan = json.loads(alone.stdout)
    for ranks in (2, 4):
        dry = run([BIN / "ckpt-convert", source, target, *flags, "--dry-run", "--format", "json"], ranks=ranks)
        expect(dry.returncode == 0 and not target.exists(), f"a dry run by {ranks}", dry)
        theirs = json.loads(dry.stdout)
        for field in ("bytes", "source_bytes", "seal_bytes", "files", "tensors"):
            expect(theirs[field] == plan[field], f"a dry run by {ranks}: {field}", dry)
        done = run([BIN / "ckpt-convert", source, target, *flags, "--progress", "json"], ranks=ranks)
        expect(done.returncode == 0, f"progress of {ranks}", done)
        told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        expect(told and all(t["schema"] == "tessera.progress/1" for t in told), f"progress of {ranks}", done)
        bytes_done = [t["done_bytes"] for t in told]
        expect(bytes_done == sorted(bytes_done) and max(t["total_bytes"] for t in told) == plan["bytes"], f"progress of {ranks} never goes back", done)
        expect(bytes_done.count(plan["bytes"]) >= 1 and bytes_done[-1] == plan["bytes"], f"progress of {ranks} ends with the bytes of all", done)
        expect(told[-1]["done_bytes"] == sum(f.stat().st_size for f in target.iterdir() if f.name != "tessera.manifest.json"), "the bytes that are there", done)
        expect(sum(t["seconds"] == told[-1]["seconds"] for t in told) == 1, f"one of {ranks} speaks", done)
        shutil.rmtree(target)
    print(f"progress of 2 and 4: one process tells of all {plan['bytes']} bytes; --dry-run as alone")


def refused(done, exit_code, target, what, word):
    expect(done.returncode == exit_code, f"{what}: exit {exit_code}", done)
    expect(not target.exists(), f"{what}: nothing is published", done)
    expect(done.stderr.count(word) == 1, f"{what}: \"{word}\" is told once", done)
    expect(not done.stdout, f"{what}: nothing on stdout", done)


def errors_on_one_rank(work, source):
    target = work / "refused"
    # A rank that does not see the source.
    only_some = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then cd /; fi; exec "$@"'
    done = run(["sh", "-c", only_some, "-", BIN / "ckpt-convert", "source.safetensors", target, "--to", "torch-dcp"], cwd=work, ranks=4)
    refused(done, 3, target, "a rank without the source", "ckpt-convert: ")
    expect("rank 1" in done.stderr, "the rank is named", done)
    # Damage that one rank reads: its item's checksum.
    damaged = work / "damaged"
    done = run([BIN / "ckpt-convert", source, damaged, "--to", "torch-dcp", "--world-size", "4"])
    expect(done.returncode == 0, "a source to damage", done)
    (damaged / "tessera.manifest.json").unlink()
    file = damaged / "__2_0.distcp"
    data = bytearray(file.read_bytes())
    header = 8 + struct.unpack("<Q", source.read_bytes()[:8])[0]
    inside = header + 600 * 257 * 4  # row 600 of 1031: rank 2 of 4 holds it
    data[data.index(source.read_bytes()[inside:inside + 64])] ^= 1
    file.write_bytes(data)
    done = run([BIN / "ckpt-reshard", damaged, target, "--world-size", "3"], ranks=4)
    refused(done, 4, target, "damage in one rank's source", "checksum")
    # A rank whose files may not grow: its disk is full.
    limited = 'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then trap "" XFSZ; ulimit -f 64; fi; exec "$@"'
    done = run(["sh", "-c", limited, "-", BIN / "ckpt-convert", source, target, "--to", "torch-dcp", "--world-size", "4"], ranks=4)
    expect(done.returncode in (3, 6), "a rank that cannot write: exit 3 or 6", done)
    refused(done, done.returncode, target, "a rank that cannot write", "ckpt-convert: ")
    expect("rank 2" in done.stderr, "the rank that cannot write is named", done)
    expect(not stages(work), "no stage is left")
    done = run([BIN / "ckpt-reshard", damaged, target, "--world-size", "3", "--resume"], ranks=2)
    refused(done, 5, target, "--resume by several", "is for one process")
    done = run([BIN / "ckpt-convert", source, target, "--to", "torch-dcp", "--mem-limit", "1024TiB"], ranks=2)
    refused(done, 6, target, "more memory than there is", "--mem-limit")
    print("errors on one rank: source absent, source damaged, no room, --resume: told once, nothing published")


def full_disk(work, source):
    """A file system of 8 MiB, in a mount namespace of its own, where that is allowed."""
    script = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && exec "$@"'
    small = work / "small"
    small.mkdir()
    if run(["unshare", "-m", "true"]).returncode:
        print("full disk: skipped, no mount namespaces here")
        return
    target = small / "out"
    inner = [*LAUNCH, "-n", "2", BIN / "ckpt-convert", source, target, "--to", "torch-dcp", "--world-size", "2"]
    done = run(["unshare", "-m", "sh", "-c", script, "-", small, *inner])
    refused(done, 6, target, "a full disk", "ckpt-convert: ")
    print("full disk: exit 6, nothing published")


def children(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def killed_process(work):
    source, target = work / "large.safetensors", work / "killed"
    write_safetensors(source, 96)
    command = [*LAUNCH, "-n", "4", BIN / "ckpt-convert", source, target, "--to", "torch-dcp", "--world-size", "7"]
    process = subprocess.Popen([str(c) for c in command], env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    victims = []
    while time.monotonic() < deadline and process.poll() is None:
        if stages(work) and (victims := children(process.pid)):
            break
        time.sleep(0.001)
    expect(len(victims) >= 2 and process.poll() is None, f"a run to kill a process of ({victims})")
    os.kill(victims[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    expect(process.returncode != 0, "a killed process fails the job")
    expect(not target.exists(), "a killed process: nothing is published")
    deadline = time.monotonic() + 30
    while (left := [p for p in victims if pathlib.Path(f"/proc/{p}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    expect(not left, f"no process is left ({left})")
    done = run([BIN / "ckpt-convert", source, target, "--to", "torch-dcp", "--world-size", "7"])
    expect(done.returncode == 0 and not stages(work), "the next run cleans up and succeeds", done)
    print("killed process: the job ends, nothing published, the next run succeeds")


def without_plugin(work, source):
    lonely = work / "lonely"
    lonely.mkdir()
    shutil.copy(BIN / "ckpt-convert", lonely)
    target = work / "raced"
    command = [lonely / "ckpt-convert", source, target, "--to", "torch-dcp", "--world-size", "2"]
    for setting in ({"OMPI_COMM_WORLD_SIZE": "2"}, {"PMI_SIZE": "4"}, {"SLURM_STEP_NUM_TASKS": "3"}, {"PMIX_RANK": "0"}):
        done = run(command, env=PLAIN | setting)
        refused(done, 5, target, f"without MPI, {setting}", "this build has no MPI")
    for setting in ({"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}, {"SLURM_NTASKS": "8"}, {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}):
        done = run(command, env=PLAIN | setting)
        expect(done.returncode == 0, f"one task is no launcher's job, {setting}", done)
        shutil.rmtree(target)
    # A plugin that lies elsewhere.
    elsewhere = PLAIN | {"TESSERA_MPI": str(BIN / "tessera-mpi.so")}
    done = run(command, env=elsewhere, ranks=2)
    expect(done.returncode == 0 and target.is_dir(), "two processes with the plugin that TESSERA_MPI names", done)
    shutil.rmtree(target)
    done = run(command, env=elsewhere | {"TESSERA_MPI": str(work / "absent.so"), "PMI_SIZE": "2"})
    refused(done, 5, target, "TESSERA_MPI names nothing", "TESSERA_MPI names")
    # Tasks that do not see each other would race just so.
    done = run([BIN / "ckpt-convert", *command[1:]], env=PLAIN | {"PMI_SIZE": "3"})
    refused(done, 5, target, "tasks that MPI does not join", "MPI sees 1")
    # As real steps of Slurm see it, where Open MPI would end the process by itself.
    step = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_STEP_ID": "0", "SLURM_NODELIST": "n1", "SLURM_PROCID": "0",
            "SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_MPI_TYPE": "none"}
    done = run([BIN / "ckpt-convert", *command[1:]], env=PLAIN | step)
    refused(done, 5, target, "srun without --mpi", "srun --mpi=pmix")
    print("without MPI, or with tasks that do not see each other: exit 5")


def main():
    if not shutil.which("mpirun"):
        skip("mpirun is not installed (openmpi-bin)")
    if not (BIN / "tessera-mpi.so").exists():
        skip("built without MPI (libopenmpi-dev)")
    with tempfile.TemporaryDirectory(prefix="tessera_mpi_") as folder:
        work = pathlib.Path(folder)
        source = work / "source.safetensors"
        write_safetensors(source, 12)
        same_as_one_process(work, source)
        progress_of_all(work, source)
        errors_on_one_rank(work, source)
        full_disk(work, source)
        killed_process(work)
        without_plugin(work, source)


main()
