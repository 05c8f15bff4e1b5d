"""fsdp::Muon on shards against torch.optim.Muon on the same model, unsharded, in one process: the same losses and parameters after
8 steps, on 1, 2 and 4 processes. Several processes add gradients in another order, and Muon orthogonalises in bf16, which rounds some of
them to the other side: how far that may go is measured on torch.optim.Muon itself, with gradients that differ in their last bit."""
import torch
from fsdp2_parity_test import STEPS, Net, far, formula, ours
from support import done


def theirs(seed=None):
    """seed: each gradient is rounded up or down in its last bit, or stays, by chance."""
    noise = None if seed is None else torch.Generator().manual_seed(seed)
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
        for p in net.parameters() if noise else ():
            p.grad.mul_(1 + torch.randint(-1, 2, p.shape, generator=noise) * 2.0**-23)
        muon.step(), adamw.step()
        losses.append(loss.item())
    return losses, {n: p.detach().reshape(-1).tolist() for n, p in net.named_parameters()}


def apart(a, b):
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name], strict=True))


if __name__ == "__main__":
    if not hasattr(torch.optim, "Muon"):
        raise SystemExit("PyTorch is older than torch.optim.Muon")
    torch.set_num_threads(1)
    losses, parameters = theirs()
    if not losses[-1] < 0.7 * losses[0]:
        raise SystemExit(f"torch.optim.Muon did not train: {losses}")
    rounded = [theirs(seed) for seed in range(8)]
    loss_bound = 3 * max(abs(a - b) for other, _ in rounded for a, b in zip(other, losses))
    bound = 3 * max(apart(other, parameters) for _, other in rounded)
    moved = 0.02 * STEPS
    if not bound < moved / 4:
        raise SystemExit(f"rounding alone moves a parameter by {bound / 3}: no difference would show")
    count = 0
    for world, layout in ((1, "flat"), (2, "flat"), (2, "rows"), (4, "rows")):
        got = ours(world, layout, "full_shard", "fp32", "muon")
        what = f"{world} processes, {layout}"
        if far(got["losses"], losses, 1e-6, 0.0 if world == 1 else loss_bound):
            raise SystemExit(f"{what}: losses {got['losses']}, torch.optim.Muon's {losses}; {loss_bound} is allowed")
        worst = apart(got["parameters"], parameters)
        if worst > (1e-6 if world == 1 else bound):
            raise SystemExit(f"{what}: a parameter is off by {worst}, {bound} is allowed")
        count += 1
    done(count, "trainings equal to torch.optim.Muon's")
