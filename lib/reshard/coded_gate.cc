#include "lib/reshard/coded_gate.h"

#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>

namespace tessera {

namespace {

/// N of "hdf5.deflate:N" and "hdf5.lzf:N", the most they give: a chunk at its dataset's end, and
/// one with a checksum behind it, is larger than what the tensor has of it.
std::optional<std::uint64_t> declared_output(std::string_view codec) {
  for (const std::string_view name : {"hdf5.deflate:", "hdf5.lzf:"}) {
    if (!codec.starts_with(name)) continue;
    const std::string_view text = codec.substr(name.size());
    std::uint64_t most = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), most).ec == std::errc())
      return std::min(most, std::uint64_t{1} << 62);  // sums of it must not wrap
  }
  return std::nullopt;
}

// An archive around one tensor: headers, padding, a small pickle, the directory.
constexpr std::uint64_t kAroundBytes = std::uint64_t{64} << 10;

/// N and O + N of "slice:O:N", the only codec that says what it takes and gives.
bool slice_of(std::string_view codec, std::uint64_t& length, std::uint64_t& end) {
  const auto parts = split(codec, ':');
  if (parts.size() != 3 || parts[0] != "slice") return false;
  std::uint64_t offset = 0;
  const auto number = [](std::string_view text, std::uint64_t& value) {
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  };
  if (!number(parts[1], offset) || !number(parts[2], length)) return false;
  end = offset + length;
  return end >= offset;
}

}  // namespace

bool CodedGate::try_take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > free_) return false;
  free_ -= bytes;
  return true;
}

void CodedGate::take(std::uint64_t bytes, const CancelToken* cancel) {
  TESSERA_CHECK(bytes <= total_);
  constexpr std::chrono::milliseconds kLook{100};  // at the token
  std::unique_lock lock(mutex_);
  while (bytes > free_) {
    given_.wait_for(lock, kLook);
    if (cancel != nullptr) cancel->check();
  }
  free_ -= bytes;
}

void CodedGate::give(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    free_ += bytes;
    TESSERA_CHECK(free_ <= total_);
  }
  given_.notify_all();
}

CodedSize coded_size(const Manifest& manifest, const StoredTensor& tensor, std::uint64_t chunk) {
  const Source& source = manifest.chunks.source(chunk);
  const std::uint32_t chain = source.view != 0 ? manifest.views[source.side].codecs : source.side;
  const Chunk part = manifest.chunks.chunk(chunk, tensor.spec.shape.rank());
  std::int64_t numel = part.numel();
  if (source.view != 0) {
    const CodedView& view = manifest.views[source.side];
    std::int64_t last = view.strides.empty() ? numel - 1 : 0;
    for (std::size_t d = 0; d < view.strides.size(); ++d)
      last += (part.box.shape[static_cast<int>(d)] - 1) * view.strides[d];
    numel = view.first_element + last + 1;
  }
  CodedSize size;
  size.stored = source.length;
  size.decoded = static_cast<std::uint64_t>(
      TensorSpec{tensor.stored_dtype(), Shape{std::max<std::int64_t>(numel, 0)}}.size_bytes());
  size.largest = size.decoded;
  const std::vector<std::string>& codecs = manifest.codecs[chain];
  size.several = codecs.size() > 1;
  for (const std::string& codec : codecs) {
    std::uint64_t length = 0, end = 0;
    if (slice_of(codec, length, end)) size.largest = std::max(size.largest, end + kAroundBytes);
    if (const auto most = declared_output(codec)) size.decoded = std::max(size.decoded, *most);
    // These hand on what they are given, or a little less.
    if (codec.starts_with("hdf5.")) size.largest = std::max(size.largest, size.stored);
  }
  size.largest = std::max(size.largest, size.decoded);
  return size;
}

}  // namespace tessera
