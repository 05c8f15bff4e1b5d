// Any bytes as one of the small records that stand beside checkpoints, the first byte says which: a
// layout of flat parameters, an index of Keras weights, a seal, a file of rules, a Keras archive,
// the flag that names rules. Parsed or refused; a layout and a seal that parse read back as what
// they print.
#include <tessera/ops/rules.h>
#include <tessera/ops/seal.h>

#include <iterator>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"
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

/// A Keras archive: what it names lies inside of it.
void check_keras_archive(ByteView bytes) {
  const fuzz::InputFile file(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  h5::looks_like_keras(file);
  h5::is_zip_named_keras(file, "a.keras");
  const h5::KerasArchive archive = h5::open_keras(file);
  if (archive.offset > bytes.size() || archive.length > bytes.size() - archive.offset) std::abort();
  Bytes weights(archive.length);
  h5::FilePart(file, archive.offset, archive.length).read_at(0, weights);
}

void check_rules_flag(ByteView text) {
  try {
    parse_rules_flag(as_text(text));
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
  }
}

void check_rules(ByteView text) {
  try {
    parse_rules(as_text(text), "input");
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;  // what a user wrote
  }
}

}  // namespace

TESSERA_MUTATOR(mutate_record)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteView text{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
  constexpr void (*kChecks[])(ByteView) = {check_layout, check_keras_index,   check_seal,
                                           check_rules,  check_keras_archive, check_rules_flag};
  fuzz::refuse_cleanly([&] { kChecks[data[0] % std::size(kChecks)](text); });
  return 0;
}
