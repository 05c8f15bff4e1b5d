"""Every optimizer class of torch.optim that a state dict knows, against PyTorch's own: a fresh one has the groups of Python's class, key by key
with its defaults; and what Python trained and saved comes out of a sharded C++ model as it went in, state and groups."""
import os, subprocess, tempfile
from support import done
import torch
from common import VISIBLE, flatten, load_dcp, make_model, train

PEER = os.environ["TESSERA_STATE_TESTS"]
RATE = 0.125
CASES = {"Adam": {}, "Adam-amsgrad": dict(amsgrad=True, weight_decay=0.5), "AdamW": {}, "AdamW-betas": dict(betas=(0.5, 0.75), eps=1e-4),
         "SGD": {}, "SGD-momentum": dict(momentum=0.9, nesterov=True), "Adagrad": {}, "Adagrad-begun": dict(initial_accumulator_value=0.5, lr_decay=0.1),
         "RMSprop": {}, "RMSprop-centered": dict(momentum=0.9, centered=True, alpha=0.5)}


def optimizer(name, model):
    return getattr(torch.optim, name.split("-")[0])(model.parameters(), lr=RATE, **CASES[name])


def write(name, path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model = make_model(VISIBLE)
    opt = optimizer(name, model)
    train(model, opt, VISIBLE, 2)
    opt.zero_grad()
    parameters, state = get_state_dict(model, opt)
    dcp.save({"model": parameters, "optim": state}, checkpoint_id=path)


def same(a, b):
    if torch.is_tensor(a):
        return torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(a, b)
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)  # Python's own defaults are 0 here and 0.0 there
    return a == b and (type(a) is type(b) or number(a) and number(b))


if __name__ == "__main__":
    keys = leaves = 0
    with tempfile.TemporaryDirectory() as d:
        for name in CASES:
            write(name, os.path.join(d, name + ".theirs"))
        subprocess.run([PEER, "[.peer-classes]"], check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, TESSERA_PEER=f"{d} {RATE} {' '.join(CASES)}"))
        for name in CASES:
            theirs, back = (flatten(load_dcp(os.path.join(d, f"{name}.{kind}"))) for kind in ("theirs", "back"))
            bad = [k for k in sorted(set(theirs) | set(back)) if k not in theirs or k not in back or not same(theirs[k], back[k])]
            if bad:
                raise SystemExit(f"{name}: {bad[0]} is {theirs.get(bad[0], 'missing')} in Python and {back.get(bad[0], 'missing')} afterwards")
            leaves += len(theirs)
            if CASES[name]:
                continue
            wanted = optimizer(name, make_model(VISIBLE)).state_dict()["param_groups"][0]
            found = load_dcp(os.path.join(d, name + ".fresh"))["optim"]["param_groups"][0]
            if set(wanted) != set(found):
                raise SystemExit(f"{name}: other keys: {sorted(set(wanted) ^ set(found))}")
            for key, value in wanted.items():
                if key != "params" and not same(value, found[key]):
                    raise SystemExit(f"{name}: {key} is {value!r} in Python and {found[key]!r} here")
            keys += len(wanted)
    done(keys + leaves, f"group keys of fresh optimizers and entries of trained ones, of {len(CASES)} optimizers, as in PyTorch {torch.__version__}")
