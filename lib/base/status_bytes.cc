#include "lib/base/status_bytes.h"

#include <tessera/base/bytes.h>

#include <array>
#include <cstdint>

namespace tessera {

namespace {

template <class S>
auto strings_of(S& status) {
  return std::array{&status.message, &status.context.file, &status.context.tensor,
                    &status.context.operation, &status.hint};
}

void append(std::vector<std::byte>& bytes, const void* from, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(from);
  bytes.insert(bytes.end(), first, first + size);
}

std::span<const std::byte> take(std::span<const std::byte>& rest, std::size_t size) {
  if (rest.size() < size) fail(Code::kCorrupt, "a status from another rank ends too early");
  const auto taken = rest.first(size);
  rest = rest.subspan(size);
  return taken;
}

}  // namespace

std::vector<std::byte> status_to_bytes(const Status& status) {
  std::vector<std::byte> bytes;
  append(bytes, &status.code, sizeof status.code);
  const std::int32_t rank = status.context.rank;
  append(bytes, &rank, sizeof rank);
  for (const std::string* text : strings_of(status)) {
    const std::uint64_t size = text->size();
    append(bytes, &size, sizeof size);
    append(bytes, text->data(), text->size());
  }
  return bytes;
}

Status status_from_bytes(std::span<const std::byte> bytes) {
  Status status;
  const auto code = load_le<std::uint8_t>(take(bytes, 1).data());
  if (code > static_cast<std::uint8_t>(Code::kInternal))
    fail(Code::kCorrupt, "a status from another rank has an unknown code");
  status.code = static_cast<Code>(code);
  status.context.rank = load_le<std::int32_t>(take(bytes, sizeof(std::int32_t)).data());
  for (std::string* text : strings_of(status)) {
    const auto size = load_le<std::uint64_t>(take(bytes, sizeof(std::uint64_t)).data());
    *text = as_text(take(bytes, size));
  }
  return status;
}

}  // namespace tessera
