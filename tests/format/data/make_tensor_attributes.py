"""tensor_attributes.pt: a parameter and a tensor that carry attributes of Python beside a parameter without (PyTorch 2.13).
megatron_attributes.pt: masters with what Megatron-core 0.16.1 and 0.19.2 note on them (copy_tensor_model_parallel_attributes,
copy_optimizer_param_metadata), and a tensor whose "shared" is a program's own."""

import torch

head = torch.nn.Parameter(torch.ones(2))
head.role, head.other = "head", 1
table = torch.zeros(3)
table.note = "x"
torch.save({"p": head, "t": table, "q": torch.nn.Parameter(torch.ones(1))}, "tensor_attributes.pt")

master, norm, tied, own = torch.ones(2, 2), torch.ones(2), torch.ones(3, 2), torch.zeros(1)
for tensor in master, tied:
    tensor.tensor_model_parallel, tensor.partition_dim, tensor.partition_stride = True, 0, 1
master.expert_tp, master.is_qkv = False, True
norm.allreduce, norm.sequence_parallel = True, False
tied.shared = True
own.shared = "by hand"
torch.save({"optimizer": {"fp32_from_fp16_params": [[master, norm, tied]]}, "own": own}, "megatron_attributes.pt")
