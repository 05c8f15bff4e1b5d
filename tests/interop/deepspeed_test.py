"""DeepSpeed itself reads what we write: zero_to_fp32, ds_to_universal, and engines of two ranks.

Needs a Python with deepspeed (TESSERA_DEEPSPEED_PYTHON, else this one); skipped where there is none.
"""
import argparse, hashlib, json, os, shutil, subprocess, sys, tempfile

SKIP = 77
HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES = os.path.join(HERE, "..", "..", "sample_checkpoints")
BIN = os.environ.get("TESSERA_BIN", os.path.join(HERE, "..", "..", "build", "bin"))
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["DS_BUILD_OPS"] = "0"


def find_python():
    chosen = os.environ.get("TESSERA_DEEPSPEED_PYTHON")
    if chosen and os.path.realpath(sys.executable) and not os.environ.get("TESSERA_DEEPSPEED_CHILD"):
        os.environ["TESSERA_DEEPSPEED_CHILD"] = "1"
        os.execv(chosen, [chosen, os.path.abspath(__file__)])
    try:
        import deepspeed  # noqa: F401
    except Exception as error:
        print("SKIP: deepspeed cannot be imported (%s); pip install deepspeed" % error)
        sys.exit(SKIP)


def tool(name, *args):
    done = subprocess.run([os.path.join(BIN, name), *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, (name, args, done.stderr[-2000:])
    return done.stdout


def sha(tensor):
    import torch
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return hashlib.sha256(raw).hexdigest()


def hashes(path):
    document = json.loads(tool("ckpt-inspect", "hash", path, "--format", "json"))
    return {t["name"]: (t["dtype"], tuple(t["shape"]), t["sha256"]) for t in document["tensors"]}


def described(tensor):
    return (str(tensor.dtype).replace("torch.", ""), tuple(tensor.shape), sha(tensor))


def tag_of(path):
    return open(os.path.join(path, "latest")).read().strip()


def check_zero_to_fp32(path):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    state = get_fp32_state_dict_from_zero_checkpoint(path, tag_of(path))
    ours = {k[len("model."):]: v for k, v in hashes(path).items() if k.startswith("model.")}
    theirs = {k: described(v) for k, v in state.items()}
    assert ours == theirs, sorted(set(ours) ^ set(theirs)) or [k for k in ours if ours[k] != theirs[k]]


def converted_by_deepspeed(path, work):
    from deepspeed.checkpoint import ds_to_universal
    out = os.path.join(work, "theirs")
    shutil.rmtree(out, ignore_errors=True)
    ds_to_universal.main(argparse.Namespace(
        input_folder=os.path.join(path, tag_of(path)), output_folder=os.path.join(out, "universal"),
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=True))
    return os.path.join(out, "universal")


def universal_files(folder):
    import torch
    found = {}
    for name in sorted(os.listdir(os.path.join(folder, "zero"))):
        base = os.path.join(folder, "zero", name)
        for leaf in sorted(os.listdir(base)) if os.path.isdir(base) else []:
            content = torch.load(os.path.join(base, leaf), weights_only=False)
            extra = {}
            if isinstance(content, dict):
                extra = {k: v for k, v in content.items() if k != "param"}
                content = content["param"]
            found[name + "/" + leaf] = (described(content) if torch.is_tensor(content) else content, extra)
    return found


def check_universal(path, work):
    theirs = universal_files(converted_by_deepspeed(path, work))
    ours = os.path.join(work, "ours")
    shutil.rmtree(ours, ignore_errors=True)
    tool("ckpt-convert", path, ours, "--to", "deepspeed-universal")
    tag = open(os.path.join(ours, "latest_universal")).read().strip()
    mine = universal_files(os.path.join(ours, tag))
    assert mine == theirs, [k for k in set(mine) | set(theirs) if mine.get(k) != theirs.get(k)][:5]


def engine_of(stage, bf16, load, universal):
    sys.path.insert(0, os.path.join(SAMPLES, "generate"))
    import deepspeed_cases as cases
    config = dict(cases.VISIBLE, groups=stage < 3, seed=4321)  # other weights than those saved
    engine = cases.engine(config, stage, bf16, universal=universal)
    assert engine.load_checkpoint(load)[0] is not None
    return engine


def without_compiling():
    """DeepSpeed would compile a helper for ranks of one machine; Gloo does without."""
    import importlib
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def worker(rank, world, stage, bf16, load, out, universal):
    without_compiling()
    engine = engine_of(stage, bf16, load, universal)
    engine.save_checkpoint(out, tag="saved", client_state={"note": "client state", "epoch": 3})


def loaded_by_engine(stage, bf16, path, work, universal=False):
    """What two ranks save again after loading `path`."""
    sys.path.insert(0, os.path.join(SAMPLES, "generate"))
    import common
    out = os.path.join(work, "saved")
    shutil.rmtree(out, ignore_errors=True)
    common.spawn(worker, 2, stage, bf16, path, out, universal)
    return hashes(out)


def check_engine(stage, bf16, source, path, work, universal=False):
    saved, wanted = loaded_by_engine(stage, bf16, path, work, universal), hashes(source)
    for name, content in wanted.items():
        buffer = name.split(".")[-1] in ("tokens_seen", "scale_history") or ".tokens_seen." in name or ".scale_history." in name
        if universal and buffer:
            continue  # DeepSpeed restores none from a Universal folder
        if name.endswith(".step") and name not in saved:
            continue
        if name.startswith("optim.") and name.endswith(".fp32") and name not in saved:
            continue  # of what is not trained: stage 3 has none
        assert saved[name] == content, name


def plain_worker(rank, world, fp16, load, out):
    """An engine of stage 2 loads what an engine without ZeRO saved."""
    without_compiling()
    import deepspeed, torch
    import deepspeed_cases as cases
    from deepspeed.accelerator import get_accelerator
    type(get_accelerator()).is_fp16_supported = lambda self: True  # slow on a CPU, and right
    config = dict(cases.VISIBLE, tied=True, hidden=7, dim=5, seed=4321)
    model = cases.make_model(config)
    optimizer = torch.optim.AdamW(cases.groups_of(model, config), lr=config["lr"], foreach=False)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, dist_init_required=False, config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "steps_per_print": 1000,
        "zero_allow_untested_optimizer": True, "fp16" if fp16 else "bf16": {"enabled": True}})[0]
    assert engine.load_checkpoint(load)[0] is not None
    assert engine.optimizer.loss_scaler.cur_scale == (16 if fp16 else 1), engine.optimizer.loss_scaler.cur_scale
    engine.save_checkpoint(out, tag="saved")


def check_plain(name, fp16, work):
    import common
    source = os.path.join(HERE, "..", "format", "data", "deepspeed_plain", name, "checkpoint")
    path, out = os.path.join(work, name), os.path.join(work, name + "_saved")
    tool("ckpt-convert", source, path, "--to", "deepspeed-zero", "--world-size", 2)
    common.spawn(plain_worker, 2, fp16, path, out)
    saved = hashes(out)
    for tensor, content in hashes(path).items():
        if tensor.startswith("optim."):
            assert saved[tensor] == content, tensor


def check_patterns(work):
    """A client's patterns for merging tensor-parallel ranks: kept for ds_to_universal, and applied as it does."""
    import torch
    source = os.path.join(work, "patterns")
    shutil.copytree(os.path.join(SAMPLES, "deepspeed", "zero2_w2", "checkpoint"), source)
    model = os.path.join(source, tag_of(source), "mp_rank_00_model_states.pt")
    state = torch.load(model, weights_only=False)
    state["universal_checkpoint_info"] = {
        "universal_checkpoint_version": 0.2, "original_vocab_size": 10, "vocabulary_parameter_patterns": [r"embed.weight"],
        "parameter_with_row_parallelism_patterns": [r"layers\.\d+\.down\.weight"], "parameter_to_average_patterns": [r"head.bias"],
        "tp_replicated_parameter_patterns": [r"layers\.\d+\.norm\..*"],
        "parameter_with_2_sub_params_cat_dim_0": [r"layers\.\d+\.up\.weight"]}
    torch.save(state, model)
    theirs = universal_files(converted_by_deepspeed(source, work))
    resharded, ours = os.path.join(work, "patterns_3"), os.path.join(work, "patterns_universal")
    tool("ckpt-reshard", source, resharded, "--world-size", 3, "--verify")
    assert universal_files(converted_by_deepspeed(resharded, work)) == theirs
    tool("ckpt-convert", source, ours, "--to", "deepspeed-universal", "--verify")
    mine = universal_files(os.path.join(ours, open(os.path.join(ours, "latest_universal")).read().strip()))
    assert mine.keys() == theirs.keys()
    for name, (content, notes) in theirs.items():
        assert mine[name][1] == notes, (name, mine[name][1], notes)
        assert mine[name][0] == content or "vocab_tensor" in notes, name  # its padding rows stay


FURTHER_STEPS = 3


def stage2_engine(world, fp16, load):
    """Of a global batch of 8, whatever the world size."""
    import deepspeed, torch
    import deepspeed_cases as cases
    from deepspeed.accelerator import get_accelerator
    type(get_accelerator()).is_fp16_supported = lambda self: True
    config = dict(cases.VISIBLE, seed=4321 if load else cases.VISIBLE["seed"])  # other weights than those saved
    model = cases.make_model(config)
    optimizer = torch.optim.AdamW(cases.groups_of(model, config), lr=config["lr"], betas=(0.9, 0.95), foreach=False)
    settings = {"train_micro_batch_size_per_gpu": 8 // world, "zero_optimization": {"stage": 2}, "steps_per_print": 1000,
                "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    if fp16:  # the window ends while the run goes on
        settings["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 4, "hysteresis": 1}
    engine = deepspeed.initialize(model=model, optimizer=optimizer, dist_init_required=False, config=settings)[0]
    if load:
        assert engine.load_checkpoint(load)[0] is not None
    return engine


def train_on(engine, rank, world, steps, seed, overflow_at=-1):
    import torch
    generator, mine = torch.Generator().manual_seed(seed), 8 // world
    for step in range(steps):
        batch = torch.randint(0, 11, (8,), generator=generator)
        loss = engine(batch[rank * mine:(rank + 1) * mine]).float().pow(2).mean()
        engine.backward(loss * float("inf") if step == overflow_at else loss)
        engine.step()


def scale_of(engine):
    scaler = engine.optimizer.loss_scaler
    return {k: getattr(scaler, k) for k in ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis") if hasattr(scaler, k)}


def stage2_worker(rank, world, work, sources, first):
    """Trains what is not there yet; then, for every source: loads it, saves it as it is, trains on, saves again."""
    without_compiling()
    for name, (source, fp16) in sources.items():
        if first and not os.path.exists(source):
            engine = stage2_engine(world, fp16, None)
            train_on(engine, rank, world, 6, 5, overflow_at=1)
            engine.save_checkpoint(source, tag="trained")
        engine = stage2_engine(world, fp16, source if first else os.path.join(work, name + "_4"))
        scales = [scale_of(engine)]
        engine.save_checkpoint(os.path.join(work, "%s_loaded_%d" % (name, world)), tag="saved")
        train_on(engine, rank, world, FURTHER_STEPS, 6)
        engine.save_checkpoint(os.path.join(work, "%s_further_%d" % (name, world)), tag="saved")
        scales.append(scale_of(engine))
        if rank == 0:
            json.dump(scales, open(os.path.join(work, "%s_scales_%d" % (name, world)), "w"))


def trained_tensors(path, work):
    """Masters and state as ds_to_universal makes them of a checkpoint."""
    import torch
    zero, out = os.path.join(converted_by_deepspeed(path, work), "zero"), {}
    for name in sorted(os.listdir(zero)):
        for leaf in sorted(os.listdir(os.path.join(zero, name))) if os.path.isdir(os.path.join(zero, name)) else []:
            content = torch.load(os.path.join(zero, name, leaf), weights_only=False)
            content = content["param"] if isinstance(content, dict) else content
            out[name + "/" + leaf] = torch.as_tensor(content).double()
    return out


def check_stage2_over_more_ranks(work):
    """W=2 to W=4: four ranks load it bit for bit, and go on as two would."""
    import common
    sources = {"fp32": (os.path.join(SAMPLES, "deepspeed", "zero2_w2", "checkpoint"), False),
               "fp16": (os.path.join(work, "fp16_trained"), True)}
    common.spawn(stage2_worker, 2, work, sources, True)
    for name, (source, _) in sources.items():
        tool("ckpt-reshard", source, os.path.join(work, name + "_4"), "--world-size", 4, "--verify")
    common.spawn(stage2_worker, 4, work, sources, False)
    for name, (source, _) in sources.items():
        at = lambda what, world: os.path.join(work, "%s_%s_%d" % (name, what, world))
        saved, wanted = hashes(at("loaded", 4)), hashes(source)
        assert saved == wanted, [k for k in set(saved) | set(wanted) if saved.get(k) != wanted.get(k)][:5]
        assert universal_files(converted_by_deepspeed(at("loaded", 4), work)) == universal_files(converted_by_deepspeed(source, work))
        scales = [json.load(open(at("scales", world))) for world in (2, 4)]
        assert scales[0] == scales[1], scales
        # Gradients are summed in another order, under fp16 in its precision; three of Adam's steps of 0.01 are 0.03.
        two, four = trained_tensors(at("further", 2), work), trained_tensors(at("further", 4), work)
        before, most = trained_tensors(source, work), {}
        assert two.keys() == four.keys()
        for key in two:
            if key.split("/")[0] == "tokens_seen":
                continue  # each rank counts its own
            leaf = key.rsplit("/", 1)[1]
            most[leaf] = max(most.get(leaf, 0), (two[key] - four[key]).abs().max().item())
        moved = max((two[k] - before[k]).abs().max().item() for k in two if k.endswith("fp32.pt") and "tokens_seen" not in k)
        print("    %s: scales %s; after %d more steps weights moved by up to %.3g; largest differences %s" %
              (name, scales[1], FURTHER_STEPS, moved, {k: "%.3g" % v for k, v in sorted(most.items())}))
        assert moved > 0.01 and most["fp32.pt"] < (1e-4 if name == "fp16" else 1e-6) and most["step.pt"] == 0, most


def main():
    find_python()
    sys.path.insert(0, os.path.join(SAMPLES, "generate"))
    cases = [("zero1_w4", 1, False), ("zero2_w2", 2, False), ("zero2_bf16_w2", 2, True), ("zero3_w4", 3, False)]
    # The gate has each stage over two ranks; ./dev soak has all numbers of ranks, and engines that load the Universal form of each.
    soak = "TESSERA_SOAK" in os.environ
    with tempfile.TemporaryDirectory() as work:
        for name, stage, bf16 in cases:
            source = os.path.join(SAMPLES, "deepspeed", name, "checkpoint")
            check_universal(source, work)
            for world in (1, 2, 3) if soak else (2,):
                path = os.path.join(work, "%s_%d" % (name, world))
                tool("ckpt-reshard", source, path, "--world-size", world)
                check_zero_to_fp32(path)
                check_universal(path, work)
                print("ok   zero_to_fp32 and ds_to_universal of", name, "over", world, "ranks")
            check_engine(stage, bf16, source, os.path.join(work, name + "_2"), work)
            print("ok   two ranks load", name)
            if not soak and stage != 3:
                continue
            universal = os.path.join(work, name + "_universal")
            tool("ckpt-convert", source, universal, "--to", "deepspeed-universal")
            check_engine(stage, bf16, source, universal, work, universal=True)
            print("ok   two ranks load the Universal form of", name)
        for name, fp16 in (("bf16_w2", False), ("fp16_w2", True)):
            check_plain(name, fp16, work)
            print("ok   two ranks of stage 2 load an engine without ZeRO,", name)
        check_patterns(work)
        print("ok   patterns for tensor parallelism are kept, and applied as ds_to_universal does")
        check_stage2_over_more_ranks(work)
        print("ok   four ranks of stage 2 load what two saved, fp32 and fp16, and go on as two do")
        source = os.path.join(SAMPLES, "deepspeed", "zero2_w2", "checkpoint")
        path = os.path.join(work, "as_stage_1")
        tool("ckpt-reshard", source, path, "--world-size", 2, "--zero-stage", 1)
        check_zero_to_fp32(path)
        check_engine(1, False, source, path, work)
        print("ok   stage 2 becomes stage 1")
        source = os.path.join(SAMPLES, "deepspeed", "zero3_w4", "checkpoint")
        dcp, path = os.path.join(work, "dcp"), os.path.join(work, "from_dcp")
        tool("ckpt-convert", source, dcp, "--to", "torch-dcp", "--world-size", 3)
        tool("ckpt-convert", dcp, path, "--to", "deepspeed-zero", "--world-size", 2, "--zero-stage", 3)
        check_zero_to_fp32(path)
        check_engine(3, False, source, path, work)
        print("ok   a DCP becomes stage 3")


if __name__ == "__main__":
    main()
