"""Megatron-core resumes from what the commands made of its checkpoints, at other sizes: real models and optimizers on CPUs with Gloo
(megatron-core 0.16.1), whose every weight, moment, step and option is then what Megatron's own load of its own torch_dist gives at
that size, before and after a step. Run in tests/soak/run, as it starts many processes.

    python megatron_resume_test.py [CASE]...
"""
import os
import sys
import tempfile

from support import done, tool

try:
    import megatron.core  # noqa: F401
except ImportError as e:
    print(f"skipped: megatron-core is not installed ({e}); tests/interop/requirements.txt names it")
    sys.exit(77)
import megatron_jobs as jobs

# name: (the source's job, the sizes it is loaded at, how the result is made: from which form to which, with which flags)
TO_RANKS, TO_DIST = "dist -> ranks", "ranks -> dist"
CASES = {
    "stacked layers to rank files": (dict(tp=2), dict(tp=1), TO_RANKS, []),
    "stacked experts to rank files": (dict(ep=2, dp=2, experts=4), {}, TO_RANKS, []),
    "latent attention to rank files": (dict(tp=2, mla=True), dict(tp=1), TO_RANKS, []),
    "further layers to rank files": (dict(pp=2, mtp=1), dict(pp=1, tp=2), TO_RANKS, []),
    "state of modules to rank files": (dict(extra="tensor"), dict(tp=2), TO_RANKS, []),
    "state of modules, bytes, to rank files": (dict(pp=2, extra="bytes"), dict(pp=1), TO_RANKS, []),
    "state of experts to rank files": (dict(ep=2, dp=2, experts=4, extra="tensor"), {}, TO_RANKS, []),
    "a plain optimizer to torch_dist": (dict(tp=2, distributed=False), dict(tp=1), TO_DIST, ["--rules", "llama:megatron-dist"]),
    "a plain fp32 optimizer to torch_dist": (dict(distributed=False, bf16=False), dict(tp=2), TO_DIST, ["--rules", "llama:megatron-dist"]),
    "state of modules to torch_dist": (dict(extra="tensor"), dict(tp=2), TO_DIST, ["--rules", "llama:megatron-dist"]),
    "state of modules, bytes, to torch_dist": (dict(pp=2, extra="bytes"), dict(pp=1), TO_DIST, ["--rules", "llama:megatron-dist"]),
    "an interleaved pipeline": (dict(pp=2, vpp=2, layers=4), dict(pp=2, vpp=1), "ranks", []),
    "an interleaved pipeline made of a plain one": (dict(pp=2, layers=4), dict(pp=2, vpp=2), "ranks", []),
    "a stage with further layers": (dict(pp=2, mtp=1), dict(pp=1, tp=2), "ranks", []),
    "further layers that get a stage": (dict(mtp=1), dict(pp=2), "ranks", []),
    "latent attention of local modules": (dict(tp=2, mla=True), dict(tp=1), "ranks", []),
    "latent attention cut further": (dict(mla=True), dict(tp=2), "ranks", []),
}


def mesh_of(case):
    return ",".join(f"{d}={case[d]}" for d in ("tp", "pp", "ep", "vpp") if case[d] > 1 or d == "tp")


def made(case, other, way, flags, work):
    """The folder that is loaded, and by which of Megatron's loaders."""
    paths = {"ranks": f"{work}/ranks/iter_0000007", "dist": f"{work}/dist/iter_0000007"}
    jobs.run(case, "save", paths)
    out = f"{work}/out/iter_0000007"
    if way == TO_RANKS:
        tool("ckpt-convert", paths["dist"], out, "--to", "megatron-torch", "--mesh", mesh_of(other), "--verify", *flags)
        return paths["dist"], out, "load ranks"
    if way == TO_DIST:
        mesh = ",".join(part for part in mesh_of(case).split(",") if not part.startswith("vpp"))
        tool("ckpt-convert", paths["ranks"], out, "--to", "megatron-dist", "--mesh", mesh, "--verify", *flags)
        return paths["dist"], out, "load dist"
    tool("ckpt-reshard", paths["ranks"], out, "--mesh", mesh_of(other), "--verify", *flags)
    return paths["dist"], out, "load ranks"


def check(name, of, at, way, flags):
    case = dict(jobs.SMALL, **of)
    other = dict(case, **at)
    with tempfile.TemporaryDirectory() as work:
        own, folder, load = made(case, other, way, flags, work)
        wanted = jobs.run(other, "load dist", own, f"{work}/wanted")
        got = jobs.run(other, load, folder, f"{work}/got")
    for rank, (a, b) in enumerate(zip(wanted, got)):
        found = jobs.differences(a, b)
        assert not found, f"{name}: rank {rank}: {len(found)} differences, {found[:4]}"
    stepped = [a for a in wanted if jobs.differences(a["loaded"]["model"], a["stepped"]["model"])]
    assert len(stepped) == len(wanted), f"{name}: a step changed nothing"


def main():
    wanted = [n for n in CASES if not sys.argv[1:] or any(part in n for part in sys.argv[1:])]
    for name in wanted:
        check(name, *CASES[name])
        print("  ", name, flush=True)
    assert wanted, "no case is called so"
    done(len(wanted), "checkpoints from which Megatron resumes")


if __name__ == "__main__":
    main()
