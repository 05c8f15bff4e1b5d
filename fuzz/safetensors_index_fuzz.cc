// Any bytes as `model.safetensors.index.json` beside two small shards: read with damage tolerated
// and without, or refused. Behind '#' they are the second shard instead, as PyTorch's ranks write
// them without an index; behind '=' both.
#include <tessera/format/safetensors.h>

#include "fuzz/fuzz_checkpoint.h"
#include "fuzz/mutators.h"

namespace {

/// As a conversion does that writes by a given index.
void read_names(const tessera::Directory& directory) {
  try {
    tessera::read_shard_names(directory, tessera::find_shard_index(directory));
  } catch (const tessera::Error& error) {
    if (error.code() == tessera::Code::kInternal) std::abort();
  }
}

}  // namespace

TESSERA_MUTATOR(mutate_json)

namespace {

void read_rank_shards(tessera::ByteView first, tessera::ByteView second) {
  tessera::MemoryFileSystem fs;
  fs.write_file("/ck/shard-00001-model-00001-of-00002.safetensors", first);
  fs.write_file("/ck/shard-00002-model-00002-of-00002.safetensors", second);
  tessera::fuzz::read_checkpoint(tessera::safetensors_driver(), fs, "/ck");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto shard = [](const std::string& name) {
    std::string header =
        "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    return length + header + std::string(8, '\0');
  };
  if (size > 0 && (data[0] == '#' || data[0] == '=')) {
    const tessera::ByteView bytes{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
    const std::string small = shard("a");
    read_rank_shards(data[0] == '=' ? bytes : tessera::as_bytes(small), bytes);
    return 0;
  }
  tessera::MemoryFileSystem fs;
  if (size > 0)  // without an index the shards are read by their numbers
    fs.write_file("/ck/model.safetensors.index.json",
                  {reinterpret_cast<const std::byte*>(data), size});
  for (const std::string name : {"a", "b"}) {
    const std::string number = name == "a" ? "1" : "2";
    const std::string rank = size == 0 ? "shard-0000" + number + "-" : "";  // as PyTorch's ranks do
    fs.write_file("/ck/" + rank + "model-0000" + number + "-of-00002.safetensors",
                  tessera::as_bytes(shard(name)));
  }
  tessera::fuzz::read_checkpoint(tessera::safetensors_driver(), fs, "/ck");
  if (size > 0) read_names(*fs.open_directory("/ck"));
  return 0;
}
