#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/codec.h>
#include <tessera/encoding/json.h>
#include <tessera/format/safetensors.h>

#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/state.h"
#include "lib/state/fields.h"
#include "lib/storage/content_sums.h"

namespace tessera {
namespace {

using st::kDeltaRest;
constexpr std::uint64_t kMostIndexBytes = std::uint64_t{256} << 20;

/// Positions of bytes in the tensor, each of 4 bytes, then the bytes that belong there.
void overwrite(ByteView delta, MutableBytes tensor) {
  constexpr std::size_t kNumber = sizeof(std::uint32_t);
  if (delta.size() < kNumber) fail(Code::kCorrupt, "a delta without the count of what it changes");
  const std::uint64_t count = load_le<std::uint32_t>(delta.data());
  if (delta.size() != kNumber + count * (kNumber + 1))
    fail(Code::kCorrupt,
         fmt::format("a delta of {} bytes changes, it says, {}", delta.size(), count));
  const std::byte* values = delta.data() + kNumber + count * kNumber;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = load_le<std::uint32_t>(delta.data() + kNumber + i * kNumber);
    if (at >= tensor.size())
      fail(Code::kCorrupt, fmt::format("a delta changes byte {} of {}", at, tensor.size()));
    tensor[at] = values[i];
  }
}

/// As many bytes as the tensor has, each to combine with its own.
void combine(ByteView blob, MutableBytes tensor) {
  std::size_t at = 0;
  decode_zstd_pieces(blob, tensor.size(), [&](ByteView piece) {
    for (const std::byte b : piece) tensor[at++] ^= b;
  });
  if (at != tensor.size())
    fail(Code::kCorrupt, fmt::format("a delta of {} bytes for a tensor of {}", at, tensor.size()));
}

/// metadata["tessera"] of the index.
std::shared_ptr<const DeltaRest> read_rest(const Field& json) {
  auto rest = std::make_shared<DeltaRest>();
  const auto texts = [](const Field& dict) {
    std::map<std::string, std::string> out;
    for (const Field::Entry& entry : dict.entries())
      out.emplace(entry.key.text(), entry.value.text());
    return out;
  };
  for (const std::string& name : json.at("whole").texts()) rest->whole.insert(name);
  rest->gone = json.at("gone").texts();
  rest->unchanged = texts(json.at("unchanged"));
  rest->metadata = texts(json.at("metadata"));
  return rest;
}

}  // namespace

DeltaIndex read_delta_index(const Directory& directory, std::string index, bool guess) {
  DeltaIndex out;
  if (index.empty()) index = only_shard_index(directory, st::kNaming);
  if (index.empty()) return out;
  const auto read = [&] {
    const auto file = directory.open(index);
    if (file->size_bytes() > kMostIndexBytes) fail(Code::kCorrupt, "it is far too large");
    Bytes text(file->size_bytes());
    file->read_at(0, text);
    const Value json = parse_json(text);
    const Value* metadata = json.is_dict() ? json.find("metadata") : nullptr;
    if (metadata == nullptr || !metadata->is_dict()) return out;
    const Field root(*metadata);
    const auto take = [&](const char* key, std::string& into) {
      if (const auto field = root.find_present(key)) into = field->text();
    };
    if (metadata->find("delta_encoding") == nullptr) {
      // Any model's index may have a version of some kind.
      if (const Value* version = metadata->find("version"); version && version->is_string())
        out.version = version->as_string();
      return out;
    }
    take("version", out.version);
    take("base_version", out.base_version);
    take("delta_encoding", out.encoding);
    take("compression_format", out.compression);
    take("checksum_format", out.checksum);
    if (const auto rest = root.find_present(kDeltaRest)) out.rest = read_rest(*rest);
    const Value* weight_map = json.find("weight_map");
    out.is_empty = weight_map != nullptr && weight_map->is_dict() && weight_map->as_dict().empty();
    return out;
  };
  try {
    return in_file(index, read);
  } catch (const Error& error) {
    if (!guess || error.code() != Code::kCorrupt) throw;
    return {};
  }
}

void apply_delta(const DeltaIndex& index, ByteView blob, std::string_view sum,
                 MutableBytes tensor) {
  if (index.compression != "zstd")
    fail(Code::kUnsupported,
         fmt::format("a delta compressed with \"{}\"", printable(index.compression)),
         "zstd can be read");
  if (index.encoding == "xor") {
    combine(blob, tensor);
  } else if (index.encoding == "overwrite") {
    overwrite(decode("stream.zstd", blob, 4 + 5 * tensor.size()), tensor);
  } else {
    fail(Code::kUnsupported, fmt::format("a delta of encoding \"{}\"", printable(index.encoding)),
         "xor and overwrite can be read");
  }
  check_delta_sum(index, sum, tensor);
}

void check_delta_sum(const DeltaIndex& index, std::string_view sum, ByteView tensor) {
  const auto found = content_sum(index.checksum, tensor);
  if (!found)
    fail(Code::kUnsupported,
         fmt::format("a delta with checksums \"{}\"", printable(index.checksum)),
         "adler32, xxh3-128 and blake3 can be checked");
  if (*found != sum)
    fail(Code::kCorrupt,
         fmt::format("with the delta of version {} its {} is {}, and {} was written",
                     printable(index.version), index.checksum, *found, printable(sum)),
         "is this the base that the deltas were made against?");
}

StateDict restore_state(std::span<const SharedText> names,
                        const std::map<std::string, std::string>& metadata,
                        std::vector<bool>& embedded) {
  return st::decode_state(names, metadata, embedded);
}

}  // namespace tessera
