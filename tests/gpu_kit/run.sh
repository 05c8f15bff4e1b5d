#!/usr/bin/env bash
# Plays the kit on a machine with a GPU: parts in the order of their worth, each with a time limit of its own, 8 minutes in
# all. docs/gpu_kit.md says what each proves.
#
#   ./run.sh [PART...]        versions parity speed peer state races nccl; none named: all
#
# OUT           folder for PART.json and kit.log (default: out/ beside this script)
# KIT_SECONDS   of everything (470)
# KIT_DEVICE    cuda:0; cpu plays the same small, without peer and nccl
# KIT_ARGS      further arguments of parity, races and nccl: --ranks 2 --only clip
#
# Exit status: 0 all passed, 1 something failed or was cut off, 2 this kit is for another torch.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here/out}
device=${KIT_DEVICE:-cuda:0}
limit=${KIT_SECONDS:-470}
read -r -a further <<< "${KIT_ARGS:-}"
wanted=" $* "
status=0

# json TEXT : as a JSON string.
json() { printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | tr -d '\r' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }')"; }

find_torch() {
  local found
  found=$(python3 -c 'import torch; print(torch.__version__, torch.__path__[0])' 2>/dev/null | tail -1)
  version=${found%% *} torch=${found#* }
  built_for=$(cat "$here/built_for")
  if [ -z "$found" ]; then
    echo "run.sh: python3 here has no torch; this kit needs torch $built_for"
    return 2
  fi
  case $version in
    "$built_for" | "$built_for".*) ;;
    *)
      echo "run.sh: this kit was built for torch $built_for and python3 here has torch $version; C++ has no stable ABI" \
           "between minor releases: build the kit for that one (./dev gpu-kit in the repository)"
      return 2 ;;
  esac
  local libraries=$torch/lib folder
  for folder in "$torch"/../nvidia/*/lib; do [ -d "$folder" ] && libraries=$libraries:$folder; done
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# play PART SECONDS COMMAND... : within its own limit and what is left of the whole.
play() {
  local part=$1 seconds=$2 left=$((limit - SECONDS)) code; shift 2
  [ "$wanted" = "  " ] || [[ $wanted == *" $part "* ]] || return
  [ "$seconds" -gt "$left" ] && seconds=$left
  if [ "$seconds" -lt 1 ]; then
    echo "$part: not played: no time is left"
    status=1
    return
  fi
  echo "== $part: at most $seconds s"
  SECONDS_OF_PART=$((seconds > 20 ? seconds - 8 : seconds)) timeout -k 5 "$seconds" "$@"
  code=$?
  case $code in
    0) return ;;
    1) ;;
    77) return ;;  # it has said why
    124 | 137)
      echo "$part: cut off after $seconds s"
      if [ -f "$out/$part.json" ]; then echo "$part: $part.json has what was done by then"; fi ;;
    *) echo "$part: ended with status $code" ;;
  esac
  status=1
}

play_versions() {
  local missing gpus passed=0 failed=0 cases=""
  missing=$(ldd "$here/gpu_kit" 2>&1 | grep -E 'not found|not a dynamic' || true)
  gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current --format=csv,noheader 2>&1)
  add() {  # add NAME OK WHY
    [ "$2" = true ] && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "versions: FAILED $1: $3"; }
    cases="$cases${cases:+,}{\"name\": $(json "$1"), \"ok\": $2, \"why\": $(json "$3")}"
  }
  [ -z "$missing" ] && add "all libraries are found" true "" || add "all libraries are found" false "$missing"
  if "$here/gpu_kit" --version > /dev/null 2>&1; then
    add "the program starts" true ""
  else
    add "the program starts" false "$("$here/gpu_kit" --version 2>&1 | head -3)"
  fi
  echo "versions: kit: $(tr '\n' ' ' < "$here/about")"
  echo "versions: torch $version; $(nproc) cores; $(uname -r); $(ldd --version 2>/dev/null | head -1)"
  echo "versions: GPU: $gpus"
  printf '{"part": "versions", "passed": %d, "failed": %d, "cases": [%s], "torch": %s, "kit": %s, "gpu": %s, "cores": %d, "kernel": %s, "libraries": %s}\n' \
    "$passed" "$failed" "$cases" "$(json "$version")" "$(json "$(cat "$here/about")")" "$(json "$gpus")" "$(nproc)" \
    "$(json "$(uname -r)")" "$(json "$(ldd "$here/gpu_kit" 2>&1)")" > "$out/versions.json"
  echo "versions: $passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

kit() { "$here/gpu_kit" "$@" --device "$device" --out "$out"; }
play_parity() { kit parity --seconds "$SECONDS_OF_PART" ${further[@]+"${further[@]}"}; }
play_speed() { kit speed; }
play_peer() { python3 "$here/peer_fsdp2.py" "$out"; }
play_state() {
  local scratch=/dev/shm  # memory, where there is room for two checkpoints of 1.9 GB
  [ "$(df -k --output=avail "$scratch" 2>/dev/null | tail -1)" -ge 6000000 ] 2>/dev/null || scratch=${TMPDIR:-/tmp}
  kit state --scratch "$scratch"
}
play_races() { kit races --seconds "$SECONDS_OF_PART" --seeds "${KIT_SEEDS:-8}" ${further[@]+"${further[@]}"}; }

# NCCL from 2.30 on lets ranks share a GPU; the one that this torch brings refuses.
play_nccl() {
  local library
  if [ ! -f "$here/libnccl.so.2.xz" ]; then
    echo "nccl: not played: this kit was built without NCCL 2.30 (./dev gpu-kit --nccl)"
    return 77
  fi
  library=$(mktemp -d)/libnccl.so.2
  python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"), 1 << 20)' \
    "$here/libnccl.so.2.xz" "$library" || return 1
  LD_PRELOAD=$library NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1 NCCL_DEBUG=WARN \
    kit nccl --seconds "$SECONDS_OF_PART" ${further[@]+"${further[@]}"}
}

main() {
  mkdir -p "$out"
  find_torch || return
  export here out device torch version built_for
  export -f json kit play_versions play_parity play_speed play_peer play_state play_races play_nccl
  further_text=${KIT_ARGS:-}
  export further_text
  local part
  for part in versions:60 parity:180 speed:70 peer:90 state:50 races:45 nccl:60; do
    if [ "$device" = cpu ]; then case $part in peer:* | nccl:*) continue ;; esac; fi
    play "${part%%:*}" "${part##*:}" bash -c 'read -r -a further <<< "$further_text"; '"play_${part%%:*}"
  done
  echo "not in this kit: compute-sanitizer, CUDA graphs, a rank that dies or hangs inside NCCL, several GPUs"
  return "$status"
}

mkdir -p "$out"
main 2>&1 | tee "$out/kit.log"
exit "${PIPESTATUS[0]}"
