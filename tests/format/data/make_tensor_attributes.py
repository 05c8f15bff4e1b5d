"""tensor_attributes.pt: a parameter and a tensor that carry attributes of Python beside a parameter without (PyTorch 2.13)."""

import torch

head = torch.nn.Parameter(torch.ones(2))
head.role, head.other = "head", 1
table = torch.zeros(3)
table.note = "x"
torch.save({"p": head, "t": table, "q": torch.nn.Parameter(torch.ones(1))}, "tensor_attributes.pt")
