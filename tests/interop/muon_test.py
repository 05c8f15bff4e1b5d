"""fsdp::Muon on shards against torch.optim.Muon on the same model, unsharded, in one process: the same losses and parameters after
8 steps, on 1, 2 and 4 processes."""
import torch
from fsdp2_parity_test import STEPS, Net, far, formula, ours
from support import done


def theirs():
    net = Net()
    with torch.no_grad():
        for salt, p in enumerate(net.parameters(), 1):
            p.copy_(formula(p.shape, salt) * 0.5)
    muon = torch.optim.Muon([p for p in net.parameters() if p.ndim == 2], lr=0.02)
    adamw = torch.optim.AdamW([p for p in net.parameters() if p.ndim != 2], lr=1e-2, weight_decay=0.01)
    x, y = (formula((24, n), salt) for n, salt in ((19, 101), (5, 102)))
    losses = []
    for _ in range(STEPS):
        muon.zero_grad(), adamw.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        muon.step(), adamw.step()
        losses.append(loss.item())
    return losses, {n: p.detach().reshape(-1).tolist() for n, p in net.named_parameters()}


if __name__ == "__main__":
    if not hasattr(torch.optim, "Muon"):
        raise SystemExit("PyTorch is older than torch.optim.Muon")
    torch.set_num_threads(1)
    losses, parameters = theirs()
    if not losses[-1] < 0.7 * losses[0]:
        raise SystemExit(f"torch.optim.Muon did not train: {losses}")
    count = 0
    for world, layout in ((1, "flat"), (2, "flat"), (2, "rows"), (4, "rows")):
        got = ours(world, layout, "full_shard", "fp32", "muon")
        what = f"{world} processes, {layout}"
        # Orthogonalised in bf16: a gradient's last bit may round an update to the other side.
        if far(got["losses"], losses, 1e-6 if world == 1 else 2e-3):
            raise SystemExit(f"{what}: losses {got['losses']}, torch.optim.Muon's {losses}")
        worst = max(abs(a - b) for name in parameters for a, b in zip(got["parameters"][name], parameters[name], strict=True))
        if worst > (1e-6 if world == 1 else 2e-3):
            raise SystemExit(f"{what}: a parameter is off by {worst}")
        count += 1
    done(count, "trainings equal to torch.optim.Muon's")
