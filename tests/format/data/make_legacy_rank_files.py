"""Rank files in torch.save's old form, which has no checksums: what the ranks store may differ only
in bytes. Run with any PyTorch; writes legacy_rank_files/rank<R>.pt beside this script."""
import os

import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "legacy_rank_files")
os.makedirs(HERE, exist_ok=True)
for rank in range(2):
    generator = torch.Generator()
    generator.manual_seed(rank)
    base = torch.zeros(1500)
    base[3] = rank
    state = {
        "model": {"w": torch.arange(6.0).reshape(2, 3)},
        "rng": generator.get_state(),  # 5,056 bytes, each rank's own
        "view": base[:1200],           # of a larger storage, differs in one element
        "same": torch.ones(1200),
    }
    torch.save(state, os.path.join(HERE, f"rank{rank}.pt"), _use_new_zipfile_serialization=False)
