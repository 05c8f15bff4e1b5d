"""A Hugging Face folder made of a sharded training state: transformers loads it, in the type that was asked for, with every weight in its
place; and so does a reader that goes as vLLM's weight iterator does: glob, the index as a filter, safe_open, get_tensor."""
import glob, json, os, pathlib, sys, tempfile
from support import done, tool
import torch
import torch.distributed.checkpoint as dcp

try:
    import transformers
except ImportError:
    print("skipped: transformers is not installed")
    sys.exit(77)


def make_run(folder):
    """(the model, its state as DCP below the root `model`, and the base that it began from)"""
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                      vocab_size=64, tie_word_embeddings=False)
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=folder / "run", no_dist=True)
    config.dtype = torch.float32
    snapshot = folder / "cache" / "models--me--tiny" / "snapshots" / "abc"
    config.save_pretrained(snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    return model


def as_vllm_reads(folder):
    """vllm/model_executor/model_loader/weight_utils.py: filter_duplicate_safetensors_files, then safetensors_weights_iterator."""
    from safetensors import safe_open
    files = glob.glob(os.path.join(folder, "*.safetensors"))
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.isfile(index):
        weight_map = json.load(open(index))["weight_map"]
        files = [file for file in files if file in {os.path.join(folder, name) for name in weight_map.values()}]
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                yield name, opened.get_tensor(name)


def main():
    checked = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = make_run(folder)
        os.environ["HF_HUB_CACHE"] = str(folder / "cache")
        for dtype, size in (("bf16", "5GB"), ("bf16", "8KiB"), ("fp32", "8KiB")):
            out = folder / f"{dtype}-{size}"
            said = tool("ckpt-convert", folder / "run", out, "--to", "hf", "--dtype", dtype, "--base-model", "me/tiny", "--max-shard-size", size)
            assert "verified" in said, said
            want = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
            loaded, info = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto", output_loading_info=True)
            assert loaded.dtype == want, loaded.dtype  # config.json says it
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
            weights = {key: value.to(want) for key, value in model.state_dict().items()}
            for other in (loaded.state_dict(), dict(as_vllm_reads(str(out)))):
                assert other.keys() == weights.keys(), other.keys() ^ weights.keys()
                assert all(torch.equal(weights[key], other[key]) and other[key].dtype == want for key in weights), dtype
                checked += len(weights)
            names = [key for key, _ in as_vllm_reads(str(out))]
            assert len(names) == len(set(names)), "a weight comes twice"
            assert (len(list(out.glob("*.safetensors"))) > 1) == (size == "8KiB")
    done(checked, "weights of Hugging Face folders as transformers loads them, and as vLLM's iterator gives them")


if __name__ == "__main__":
    main()
