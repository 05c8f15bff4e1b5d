// Any bytes as JSON: parsed or refused; what parses prints and reads back equal, and so does what
// decodes as tagged JSON.
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_json)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView text{reinterpret_cast<const std::byte*>(data), size};
  const auto tensor_index = [](const std::string&) { return 0u; };
  const auto tensor_name = [](std::uint32_t) { return std::string("t"); };
  fuzz::refuse_cleanly([&] {
    const Value value = parse_json(text, {.max_depth = 64});
    if (!(parse_json(as_bytes(dump_json(value)), {.max_depth = 64}) == value)) std::abort();
    canonical_json(value);
    const Value decoded = from_tagged_json(value, tensor_index);
    ValueBudget budget(1 << 20);
    const Value again = to_tagged_json(decoded, tensor_name, budget);
    if (!(from_tagged_json(again, tensor_index) == decoded)) std::abort();
  });
  return 0;
}
