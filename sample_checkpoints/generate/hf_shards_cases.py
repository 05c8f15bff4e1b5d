"""Hugging Face's older shards: files of torch.save with an index, cut by huggingface_hub.

    python hf_shards_cases.py [root] [seed]
"""
import glob, os, sys
import torch
import huggingface_hub
from common import *


def main(root, seed=4):
    case = fresh_case(root, "torchsave", "hf_shards")
    os.makedirs(case + "/checkpoint")
    state = make_model(dict(VISIBLE, seed=seed, layers=3, tied=True)).state_dict()
    with inside(case):
        huggingface_hub.save_torch_state_dict(state, "checkpoint", max_shard_size=1200, safe_serialization=False)
        back = {}
        for shard in sorted(glob.glob("checkpoint/*.bin")):
            back.update(torch.load(shard, weights_only=True))
    assert list(sorted(back)) == sorted(state)
    write_expected(case, "hf-torch-sharded", "huggingface_hub", huggingface_hub.__version__, back,
                   notes="pytorch_model-*.bin with pytorch_model.bin.index.json; tied weights in one shard",
                   torch_version=torch.__version__.split("+")[0])


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT), int(sys.argv[2]) if len(sys.argv) > 2 else 4)
