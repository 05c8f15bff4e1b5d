// Any bytes as `model.safetensors.index.json` beside two small shards: read with damage tolerated
// and without, or refused.
#include <tessera/format/safetensors.h>

#include "fuzz/fuzz_checkpoint.h"
#include "fuzz/mutators.h"

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
  for (const std::string name : {"a", "b"})
    fs.write_file("/ck/model-0000" + std::string(name == "a" ? "1" : "2") + "-of-00002.safetensors",
                  tessera::as_bytes(shard(name)));
  tessera::fuzz::read_checkpoint(tessera::safetensors_driver(), fs, "/ck");
  return 0;
}
