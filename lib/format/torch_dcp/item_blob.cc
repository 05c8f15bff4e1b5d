#include "lib/format/torch_dcp/item_blob.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <algorithm>

namespace tessera::dcp {
namespace {

constexpr std::string_view kShardingKey = "DCP_SHARDING_INFO";

}  // namespace

bool BlobCache::is_blob(ItemReader& reader, const Item& item) {
  if (loaded_ && file_ == item.file && offset_ == item.offset) return true;
  return looks_like_safetensors(reader.rest_of_file(item.file, item.offset));
}

void BlobCache::load(ItemReader& reader, const Item& item) {
  if (loaded_ && file_ == item.file && offset_ == item.offset) return;
  loaded_ = false;
  entries_.clear();
  const SafetensorsHeader header =
      read_safetensors_header(reader.rest_of_file(item.file, item.offset));
  for (const SafetensorsTensor& tensor : header.tensors) {
    entries_[tensor.name] = {
        tensor.spec, item.offset + header.data_offset + tensor.begin, {}, false};
  }
  const auto sharding = header.metadata.find(std::string(kShardingKey));
  if (sharding != header.metadata.end()) {
    const Value info = parse_json(as_bytes(sharding->second));
    if (!info.is_dict()) fail(Code::kCorrupt, fmt::format("{} is no JSON object", kShardingKey));
    for (const auto& [name, value] : info.as_dict()) {
      const Value* offsets = value.find("saved_offsets");
      const auto found = entries_.find(name.as_string());
      if (found == entries_.end() || !offsets || offsets->kind() != Value::Kind::kList) continue;
      found->second.has_origin = true;
      for (const Value& number : offsets->as_list()) {
        if (!number.is_int())
          fail(Code::kCorrupt, fmt::format("{}: an offset is no integer", kShardingKey));
        found->second.origin.push_back(number.as_int());
      }
    }
  }
  file_ = item.file;
  offset_ = item.offset;
  loaded_ = true;
}

LocatedChunk BlobCache::locate(ItemReader& reader, const Item& item, const std::string& name,
                               std::span<const std::int64_t> origin, const TensorSpec& expected) {
  load(reader, item);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    fail(Code::kCorrupt, "the safetensors blob of its file does not hold it");
  }
  const Entry& entry = found->second;
  if (entry.has_origin && !std::ranges::equal(entry.origin, origin)) {
    fail(Code::kCorrupt,
         "its file holds another chunk of it: the writer kept one chunk of a name per "
         "safetensors blob, this one is lost");
  }
  if (entry.spec != expected) {
    fail(Code::kCorrupt, fmt::format("its safetensors blob holds a {}, .metadata says {}",
                                     entry.spec.to_string(), expected.to_string()));
  }
  LocatedChunk located;
  located.source.kind = Source::Kind::kExtent;
  located.source.file = item.file;
  located.source.offset = entry.offset;
  located.source.length = static_cast<std::uint64_t>(expected.size_bytes());
  return located;
}

}  // namespace tessera::dcp
