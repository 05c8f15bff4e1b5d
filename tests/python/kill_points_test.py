"""A training loop on tessera.torch.save that is killed at every file call of the process in turn, and resumed: it goes on from the last
save that had returned, or a later one, and ends with the weights of a loop that nothing stopped."""
import ctypes, os, pathlib, signal, sys, tempfile, traceback

LIBRARY = os.environ.get("TESSERA_FAIL_CALLS")
if not LIBRARY:
    print("skipped: the library that stands before the C library's file calls was not built")
    sys.exit(77)
if LIBRARY not in os.environ.get("LD_PRELOAD", ""):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": LIBRARY, "OMP_NUM_THREADS": "1"})

import torch
import tessera.torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

faults = ctypes.CDLL(LIBRARY)
faults.tessera_test_kill_at.argtypes, faults.tessera_test_calls.restype = [ctypes.c_uint64], ctypes.c_uint64
STEPS, MOST_POINTS = 4, int(os.environ.get("TESSERA_KILL_POINTS", "150"))


def train(run, tell, kill_at=None):
    """One process's life. tell(word, number): "resumed" and "saved" steps, "calls"."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if (run / "latest").exists():
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optim": moments, "step": 0}
        tessera.torch.load(state, checkpoint_id=run / "latest", verify=True)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        start = state["step"]
    tell("resumed", start)
    if kill_at is not None:
        faults.tessera_test_kill_at(kill_at)
    for step in range(start + 1, STEPS + 1):
        torch.manual_seed(step)
        x = torch.randn(16, 8)
        torch.nn.functional.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()
        weights, moments = get_state_dict(model, optimizer)
        tessera.torch.save({"model": weights, "optim": moments, "step": step}, checkpoint_id=run / f"step-{step}", update_latest=True,
                           keep_last=2, force=True)
        tell("saved", step)
    if kill_at is not None:
        tell("calls", faults.tessera_test_calls())
    return b"".join(value.numpy().tobytes() for value in model.state_dict().values())


def import_what_steps_import():
    """Once, instead of in each of the forked processes."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def life(run, kill_at=None):
    """(how a forked process ended, what it told, the weights that it ended with)"""
    readable, writable = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            weights = train(run, lambda word, number: os.write(writable, f"{word} {number}\n".encode()), kill_at)
            os.write(writable, f"weights {weights.hex()}\n".encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(writable)
    with os.fdopen(readable) as told:
        rows = [line.split() for line in told]
    status = os.waitpid(process, 0)[1]
    return status, {word: value for word, value in rows}


def main():
    import_what_steps_import()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = pathlib.Path(name)
        (folder / "whole").mkdir()
        status, whole = life(folder / "whole", kill_at=0)
        assert status == 0 and whole["saved"] == str(STEPS)
        calls = int(whole["calls"])
        points = sorted({1 + i * (calls - 1) // (MOST_POINTS - 1) for i in range(MOST_POINTS)}) if calls > MOST_POINTS else range(1, calls + 1)
        killed = resumed_later = 0
        for point in points:
            run = folder / f"killed-{point}"
            run.mkdir()
            status, told = life(run, kill_at=point)
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"call {point} of {calls}: status {status}"
            killed += 1
            status, after = life(run)
            assert status == 0, f"killed at call {point} of {calls}, the run does not resume"
            assert int(after["resumed"]) >= int(told.get("saved", 0)), f"call {point}: {told} saved, {after['resumed']} resumed"
            assert after["weights"] == whole["weights"], f"call {point}: other weights"
            resumed_later += int(after["resumed"]) > 0
        assert killed > 20 and resumed_later > 10, (killed, resumed_later)
        print(f"killed at {killed} of {calls} file calls of {STEPS} saves; all resumed to equal weights, {resumed_later} from a checkpoint")


if __name__ == "__main__":
    main()
