// Arbitrary text as the shape and the slices in the metadata of nanotron's files, a line each: reading
// either succeeds or throws tessera::Error.
#include "fuzz/fuzz_support.h"
#include "lib/format/nanotron/slices.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t line = std::min(text.find('\n'), size);
  tessera::fuzz::refuse_cleanly([&] {
    const tessera::Shape whole = tessera::nanotron::parse_shape(text.substr(0, line));
    tessera::nanotron::parse_slices(text.substr(std::min(line + 1, size)), whole, whole);
  });
  return 0;
}
