#!/usr/bin/env bash
# run.sh installed|subdirectory SOURCE BUILD WORK [TORCH]: builds the consumer that way and runs it on a sample; where
# TORCH names LibTorch's CMake package and the runtime is installed too, a training program as well.
set -euo pipefail
kind=$1 source=$2 build=$3 work=$4 torch=${5:-}
rm -rf "$work" && mkdir -p "$work"
if [ "$kind" = installed ]; then
  cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
  for page in ckpt-inspect ckpt-reshard ckpt-convert; do
    [ "$("$work/prefix/bin/$page" --version | cut -d' ' -f1)" = $page ]
    [ -x "$work/prefix/bin/$page" ] && [ -s "$work/prefix/share/man/man1/$page.1" ]
    [ -s "$work/prefix/share/bash-completion/completions/$page" ]
  done
  flags=(-DCMAKE_PREFIX_PATH="$work/prefix")
  [ -z "$torch" ] || flags+=(-DTorch_DIR="$torch")
else
  # Most objects are taken from BUILD; ./dev soak compiles all, without optimization, which takes a third of the time.
  flags=(-DTESSERA_SOURCE="$source" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0)
  [ -n "${TESSERA_COMPILE_ALL:-}" ] || flags+=(-DCCACHE="$source/tests/consumer/reuse_object")
  export TESSERA_OBJECTS=$build
fi
sed -n '/^    #include <tessera\/base\/error.h>$/,/^    }$/s/^    //p; /^$/p' "$source/README.md" >"$work/readme.cc"
flags+=(-DREADME_PROGRAM="$work/readme.cc")
cmake -S "$source/tests/consumer" -B "$work/build" -G Ninja "${flags[@]}" >"$work/configure.log"
targets=(consumer readme); [ "$kind" = installed ] && [ -n "$torch" ] && targets+=(training)
ninja -C "$work/build" -j 2 "${targets[@]}" >"$work/build.log"
"$work/build/consumer" "$source/sample_checkpoints/dcp/fsdp2_w4/checkpoint"
"$work/build/readme" "$source/sample_checkpoints/dcp/fsdp2_w4/checkpoint" model.embed.weight
said=$("$work/build/readme" "$source/sample_checkpoints/dcp/fsdp2_w4/checkpoint" model.embed.weigth 2>&1) && exit 1
[[ $said == *'did you mean "model.embed.weight"'* ]]
if [ "$kind" = installed ]; then
  # pkg-config's file: the same object, linked by it.
  libraries=$(PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name tessera.pc)") pkg-config --cflags --libs tessera)
  # shellcheck disable=SC2086
  c++ "$(find "$work/build" -name 'consumer*.o')" $libraries -o "$work/by_pkg_config"
  "$work/by_pkg_config" "$source/sample_checkpoints/dcp/fsdp2_w4/checkpoint"
fi
if [ "$kind" = installed ] && [ -n "$torch" ]; then
  "$work/build/training" "$work/trained"
  "$work/prefix/bin/ckpt-inspect" verify "$work/trained"
fi
