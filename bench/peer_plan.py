"""PyTorch's planners without data: W ranks save T row-sharded tensors, V ranks load them. Times the global save plan and every rank's
read items, imports and the making of the plans excluded. usage: peer_plan.py TENSORS SAVING LOADING"""
import sys
import time

import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

ROWS, COLUMNS = 12, 256


def chunk(rank, world, rows):
    each = -(-rows // world)
    begin, end = min(rank * each, rows), min((rank + 1) * each, rows)
    return ChunkStorageMetadata(offsets=torch.Size([begin, 0]), sizes=torch.Size([end - begin, COLUMNS]))


def main(tensors, saving, loading):
    rows = ROWS * saving
    names = [f"layers.{t}.weight" for t in range(tensors)]
    properties = TensorProperties(dtype=torch.float32)
    size = torch.Size([rows, COLUMNS])
    plans = []
    for rank in range(saving):
        part = chunk(rank, saving, rows)
        items = [WriteItem(index=MetadataIndex(name, part.offsets), type=WriteItemType.SHARD,
                           tensor_data=TensorWriteData(chunk=part, properties=properties, size=size)) for name in names]
        plans.append(SavePlan(items))
    start = time.process_time()
    _, metadata = create_default_global_save_plan(plans)
    saved = time.process_time() - start
    start = time.process_time()
    reads = 0
    for rank in range(loading):
        local = [chunk(rank, loading, rows)]
        for name in names:
            reads += len(create_read_items_for_chunk_list(name, metadata.state_dict_metadata[name], local))
    print(f"save {saved:.3f} load {time.process_time() - start:.3f} reads {reads}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
