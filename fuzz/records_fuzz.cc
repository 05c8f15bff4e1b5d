// Any bytes as one of the small JSON records that stand beside checkpoints, the first byte says
// which: a layout of flat parameters, an index of Keras weights, a seal, a file of rules. Parsed or
// refused; a layout and a seal that parse read back as what they print.
#include <tessera/ops/rules.h>
#include <tessera/ops/seal.h>

#include "fuzz/fuzz_support.h"
#include "lib/format/hdf5/keras_files.h"
#include "lib/format/torch_rank_files/flat_record.h"

using namespace tessera;

namespace {

void check_layout(ByteView text) {
  const rank_files::FlatRecord record = rank_files::parse_flat_record(text);
  const std::string once = rank_files::dump_flat_record(record);
  if (rank_files::dump_flat_record(rank_files::parse_flat_record(as_bytes(once))) != once)
    std::abort();
  for (const rank_files::FlatUnit& unit : record.units)
    fuzz::refuse_cleanly([&] { rank_files::fit_unit(unit, 1 << 10, 3, DType::kFloat32); });
}

void check_keras_index(ByteView text) {
  for (const std::string& shard : h5::parse_keras_index(text).shards)
    if (shard.find('/') != std::string::npos || shard == "..") std::abort();
}

void check_seal(ByteView text) {
  const Bytes once = encode_seal(decode_seal(text));
  if (encode_seal(decode_seal(once)) != once) std::abort();
}

void check_rules(ByteView text) {
  try {
    parse_rules(as_text(text), "input");
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;  // what a user wrote
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteView text{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
  constexpr void (*kChecks[])(ByteView) = {check_layout, check_keras_index, check_seal,
                                           check_rules};
  fuzz::refuse_cleanly([&] { kChecks[data[0] % 4](text); });
  return 0;
}
