// Any bytes as a pickle: read, decoded, printed as `ls` does, written again; what was written must
// read.
#include <tessera/encoding/json.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

namespace {

void write_and_read_again(const Value& value) {
  Bytes pickle;
  try {
    PickleEmitter emitter;
    write_value(emitter, value, [](PickleEmitter&, std::uint32_t) { std::abort(); });
    pickle = emitter.finish();
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) std::abort();
    return;
  }
  const PickleGraph graph = read_pickle(pickle);
  decode_pickle(graph, graph.root(), nullptr);
}

void print(const Value& value) {
  ValueBudget budget(1 << 16);
  fuzz::refuse_cleanly([&] {
    canonical_json(to_json_value(
        value, [](std::uint32_t) -> Value { std::abort(); }, budget));
  });
}

}  // namespace

TESSERA_MUTATOR(mutate_pickle)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  std::optional<Value> value;
  fuzz::refuse_cleanly([&] {
    std::vector<GlobalUse> globals;
    std::size_t consumed = 0;
    const PickleGraph graph = read_pickle(bytes, {.globals = &globals}, &consumed);
    if (consumed > size) std::abort();
    value = decode_pickle(graph, graph.root(), nullptr);
  });
  if (value) print(*value);
  if (value) write_and_read_again(*value);
  fuzz::refuse_cleanly([&] {
    const PickleGraph graph = read_pickle(bytes, {.collect_denied = true});
    decode_pickle(graph, graph.root(), nullptr);
  });
  return 0;
}
