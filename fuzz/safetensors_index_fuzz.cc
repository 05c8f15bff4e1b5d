// Any bytes as `model.safetensors.index.json` beside two small shards: read with damage tolerated
// and without, or refused.
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

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto shard = [](const std::string& name) {
    std::string header =
        "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    return length + header + std::string(8, '\0');
  };
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
