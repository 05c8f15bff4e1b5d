#!/usr/bin/env bash
# run_pipeline.sh BIN WORK: examples/pipeline.cc on one, two and four processes: the same losses, which fall, and never more
# microbatches of a stage under way than 1F1B has.
set -euo pipefail
bin=$1 work=$2
rm -rf "$work" && mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
for size in 1 2 4; do
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  pids=()
  for ((rank = 0; rank < size; ++rank)); do
    if [ "$size" = 1 ]; then "$bin/fsdp_pipeline" > "$work/1.0"
    else RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$size MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 100 "$bin/fsdp_pipeline" > "$work/$size.$rank" &
      pids+=($!)
    fi
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  sed -n 's/.* loss \([0-9.]*\),.*/\1/p' "$work/$size.0" > "$work/losses.$size"
done
python3 - "$work" << 'PY'
import re, sys
work = sys.argv[1]
losses = {n: [float(x) for x in open(f"{work}/losses.{n}").read().split()] for n in (1, 2, 4)}
assert len(losses[1]) == 5 and losses[1][-1] < 0.8 * losses[1][0], losses
for n in (2, 4):
    assert len(losses[n]) == 5, losses
    assert all(abs(a - b) <= 2e-5 * max(1, abs(b)) for a, b in zip(losses[n], losses[1])), losses
for n in (2, 4):
    ticks, most = map(int, re.search(r"(\d+) ticks, at most (\d+)", open(f"{work}/{n}.0").read()).groups())
    # 4 stages x 6 microbatches, forward and backward, over two places: 24 ticks of work each, and a bubble.
    assert most <= 4 and 24 <= ticks <= 32, (ticks, most)
PY
