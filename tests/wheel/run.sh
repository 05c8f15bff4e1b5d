#!/usr/bin/env bash
# The wheel as its user has it: installed into a fresh virtual environment, where every test of the commands runs; its programs alone in
# an empty root; the same answers as the native build's, as fast.   run.sh DIST NATIVE_BIN WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
dist=$(cd "$1" && pwd) native=$(cd "$2" && pwd)
rm -rf "$3" && mkdir -p "$3"
work=$(cd "$3" && pwd)
samples=$PWD/sample_checkpoints
dcp=dcp/fsdp2_w4/checkpoint
fail() { echo "FAILED: $*" >&2; exit 1; }

echo "== size"
for wheel in "$dist"/tessera_ckpt-*.whl; do
  bytes=$(stat -c %s "$wheel")
  [ "$bytes" -le 15000000 ] || fail "$wheel takes $bytes bytes, more than 15 MB"
  echo "$bytes bytes"
done

echo "== pip install into a fresh environment"
python3 -m venv "$work/venv"
bin=$work/venv/bin
begin=$(date +%s%N)
"$bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$dist" tessera-ckpt
(cd "$samples" && env -i "$bin/ckpt-inspect" $dcp) >/dev/null
spent=$((($(date +%s%N) - begin) / 1000000))
echo "$spent ms from pip install to the first answer"
[ "$spent" -le 10000 ] || fail "more than 10 s"
for command in inspect reshard convert; do
  [ "$(env -i "$bin/ckpt-$command" --version | cut -d' ' -f1)" = "ckpt-$command" ] || fail "ckpt-$command --version"
  [ "$("$bin/python" -m tessera "$command" --version | cut -d' ' -f1)" = "ckpt-$command" ] || fail "python -m tessera $command"
done

echo "== import tessera"
for path in $dcp hdf5/contiguous/checkpoint; do
  ours=$(cd "$samples" && env -i "$bin/python" -c "import tessera; print(tessera.hash('$path').root)")
  [[ $("$native/ckpt-inspect" hash "$samples/$path" --format json) = *"\"root\":\"$ours\""* ]] || fail "tessera.hash of $path is $ours"
done
if [ -x .venv/bin/python ]; then
  "$bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$dist" --target "$work/target" tessera-ckpt
  TESSERA_BIN=$work/target/bin PYTHONPATH=$work/target:tests/interop .venv/bin/python tests/python/package_test.py || fail "the package's tests"
else
  echo "skipped: the package's tests, as there is no .venv with NumPy"
fi

echo "== the library for musl"
if [ -e /lib/ld-musl-x86_64.so.1 ] && [ -x build/toolchain/bin/cc ]; then
  python3 -m zipfile -e "$dist"/tessera_ckpt-*-musllinux_*.whl "$work/musl"
  musl=$work/musl/tessera
  ln -s libtessera.so "$musl/libtessera.so.1"  # as the linker names it; Python loads it by its path
  build/toolchain/bin/cc -dynamic -std=c11 -I include -o "$work/c_interface_test" tests/capi/c_interface_test.c -L "$musl" -ltessera "-Wl,-rpath,$musl"
  "$work/c_interface_test" "$samples" "$work/c_interface" || fail "c_interface_test under musl"
else
  echo "skipped: Debian's package musl or the pinned toolchain is not here"
fi

unpacked=$("$bin/python" -c 'import pathlib, tessera; print(next(pathlib.Path(tessera.__file__).parents[1].glob("tessera_ckpt-*.dist-info")))')
for name in LICENSE third_party/{fmt,ftxui,xxhash,CLI11,hdf5,zstd,musl,libcxx}.txt; do [ -s "$unpacked/licenses/$name" ] || fail "no licence $name"; done

echo "== what the programs ask of a machine: nothing"
for program in tessera tessera-hdf5 ckpt-inspect ckpt-reshard ckpt-convert; do
  needed=$(ldd "$bin/$program" 2>&1 || true)
  [[ $needed = *"not a dynamic executable"* || $needed = *"statically linked"* ]] || fail "$program needs a library: $needed"
done

echo "== an empty root"
if [ "$(id -u)" -ne 0 ]; then
  echo "skipped: chroot needs root"
else
  root=$work/root
  mkdir -p "$root/bin" "$root/tmp"
  cp "$bin"/tessera "$bin"/tessera-hdf5 "$bin"/ckpt-* "$root/bin/"
  cp -r "$samples/$dcp" "$root/sample"
  cp -r "$samples"/hdf5/contiguous/checkpoint "$root/hdf5"
  for verb in summary ls stat optim hash verify scan; do
    ours=$(chroot "$root" /bin/ckpt-inspect $verb /sample --format json) || fail "$verb in an empty root"
    theirs=$("$native/ckpt-inspect" $verb "$root/sample" --format json)
    [ "$verb" != hash ] || [ "${ours#*\"root\"}" = "${theirs#*\"root\"}" ] || fail "another hash in an empty root"
  done
  chroot "$root" /bin/ckpt-reshard /sample /tmp/w3 --world-size 3 --verify >/dev/null || fail "ckpt-reshard in an empty root"
  chroot "$root" /bin/ckpt-convert /tmp/w3 /tmp/out.safetensors --verify >/dev/null || fail "ckpt-convert in an empty root"
  chroot "$root" /bin/ckpt-inspect diff /sample /tmp/w3 >/dev/null || fail "diff in an empty root"
  echo "seven verbs, diff, reshard and convert"
  # Starting the helper takes /dev/null.
  if mkdir "$root/dev" && mknod -m 666 "$root/dev/null" c 1 3; then
    chroot "$root" /bin/ckpt-inspect hash /hdf5 >/dev/null || fail "HDF5 in an empty root"
    echo "HDF5"
  else
    echo "skipped: HDF5 in an empty root, as no /dev/null can be made there"
  fi
fi

echo "== every sample: the native build's answers"
answers() {  # answers BIN : what each command says of every sample, and how it ends
  local path verb
  for path in */*/checkpoint; do
    for verb in summary ls hash scan; do
      echo "$verb $path"
      "$1/ckpt-inspect" "$verb" "$path" --format json 2>&1 || echo "exit $?"
    done
  done
}
(cd "$samples" && answers "$native") > "$work/native.txt"
(cd "$samples" && answers "$bin") > "$work/wheel.txt"
diff "$work/native.txt" "$work/wheel.txt" > "$work/answers.diff" || { head -20 "$work/answers.diff" | cut -c1-300 >&2; fail "other answers"; }
echo "$(grep -c '^hash ' "$work/native.txt") samples; $(grep -c '"root":' "$work/native.txt") answers with a hash"
[ "$(grep -c '^{.*"root":"' "$work/native.txt")" -ge 60 ] || fail "too few samples could be hashed"

echo "== every test of the commands"
TESSERA_COMMANDS=$bin "$native/tools_tests" '~[kills]' > "$work/tools_tests.txt" 2>&1 || { tail -n 60 "$work/tools_tests.txt" >&2; fail "tools_tests"; }
tail -n 2 "$work/tools_tests.txt"

echo "== speed"
python3 tests/wheel/speed.py "$native" "$bin" "$work/speed"
echo "the wheel holds"
