#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "lib/encoding/hdf5_codecs.h"

namespace tessera {
namespace {

// Zeros compress about 1 : 32768 at zstd's best (a run-length block is 4 bytes for 128 KiB).
// Anything past that is a bomb's claim.
constexpr std::uint64_t kMaxRatio = 65536;
constexpr std::uint64_t kFreeBytes = 1 << 20;

/// "name[@domain][/version]" -> name; empty when the major version is not 1.
std::string_view base_name(std::string_view codec) {
  const std::size_t slash = codec.find('/');
  if (slash != codec.npos) {
    const std::string_view version = codec.substr(slash + 1);
    if (version.substr(0, version.find('.')) != "1") return {};
  }
  const std::string_view name = codec.substr(0, slash);
  return name.substr(0, name.find('@'));
}

using Context = std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)>;

Context zstd_context() {
  Context context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (!context) fail(Code::kResourceExhausted, "no memory for a zstd decoder");
  return context;
}

Bytes decode_zstd(ByteView in, std::uint64_t max_output_bytes) {
  const Context context = zstd_context();
  const std::uint64_t limit = std::min(max_output_bytes, in.size() * kMaxRatio + kFreeBytes);
  // Tensors seldom shrink to a sixteenth: one allocation where the limit is near what they can
  // hold.
  constexpr std::uint64_t kLikelyRatio = 16;
  const std::uint64_t first =
      limit / kLikelyRatio <= in.size() ? limit + 1 : std::uint64_t{64} << 10;
  Bytes out;
  ZSTD_inBuffer input{in.data(), in.size(), 0};
  std::size_t state = 0;  // 0 at the end of a frame
  std::size_t filled = 0;
  while (true) {
    if (out.size() == filled) {
      if (filled > limit)
        fail(Code::kCorrupt, fmt::format("zstd: decodes to more than {} bytes", limit));
      // One byte past the limit, so that "exactly the limit" and "more" differ.
      out.resize(std::min<std::uint64_t>(limit + 1, std::max(first, filled * 2)));
    }
    ZSTD_outBuffer output{out.data(), out.size(), filled};
    const std::size_t consumed = input.pos;
    state = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(state))
      fail(Code::kCorrupt, fmt::format("zstd: {}", ZSTD_getErrorName(state)));
    const bool progress = output.pos > filled || input.pos > consumed;
    filled = output.pos;
    if (input.pos == input.size && (state == 0 || output.pos < output.size)) break;
    if (!progress && output.pos < output.size) break;
  }
  if (filled > limit)
    fail(Code::kCorrupt, fmt::format("zstd: decodes to more than {} bytes", limit));
  if (state != 0) fail(Code::kCorrupt, fmt::format("zstd: {} bytes end inside a frame", in.size()));
  out.resize(filled);
  return out;
}

Bytes swap_case(ByteView in, std::uint64_t max_output_bytes) {
  if (in.size() > max_output_bytes)
    fail(Code::kCorrupt,
         fmt::format("stream.rot13: decodes to more than {} bytes", max_output_bytes));
  Bytes out(in.begin(), in.end());
  for (std::byte& b : out) {
    const char c = static_cast<char>(b);
    if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) b ^= std::byte{0x20};
  }
  return out;
}

// "slice:offset:length", decimal.
constexpr std::string_view kSlicePrefix = "slice:";

bool parse_decimal(std::string_view text, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Bytes slice(std::string_view codec, ByteView in, std::uint64_t max_output_bytes) {
  const std::string_view range = codec.substr(kSlicePrefix.size());
  const std::size_t colon = std::min(range.find(':'), range.size());
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  if (!parse_decimal(range.substr(0, colon), offset) || colon == range.size() ||
      !parse_decimal(range.substr(colon + 1), length)) {
    fail(Code::kUnsupported, fmt::format("codec \"{:.100}\" is not known", codec));
  }
  if (offset > in.size() || length > in.size() - offset || length > max_output_bytes) {
    fail(Code::kCorrupt, fmt::format("bytes [{}, {} + {}) are asked for, decoding gave {}", offset,
                                     offset, length, in.size()));
  }
  const ByteView part = in.subspan(offset, length);
  return Bytes(part.begin(), part.end());
}

}  // namespace

void decode_zstd_pieces(ByteView in, std::uint64_t max_output_bytes,
                        const std::function<void(ByteView)>& take) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const Context context = zstd_context();
  const std::uint64_t limit = std::min(max_output_bytes, in.size() * kMaxRatio + kFreeBytes);
  Bytes piece(kPiece);
  ZSTD_inBuffer input{in.data(), in.size(), 0};
  std::uint64_t made = 0;
  std::size_t state = 0;  // 0 at the end of a frame
  for (bool more = true; more;) {
    ZSTD_outBuffer output{piece.data(), piece.size(), 0};
    const std::size_t consumed = input.pos;
    state = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(state))
      fail(Code::kCorrupt, fmt::format("zstd: {}", ZSTD_getErrorName(state)));
    if (output.pos > limit - made)
      fail(Code::kCorrupt, fmt::format("zstd: decodes to more than {} bytes", limit));
    made += output.pos;
    if (output.pos > 0) take(ByteView(piece).first(output.pos));
    const bool done = input.pos == input.size && (state == 0 || output.pos < output.size);
    more = !done && (output.pos > 0 || input.pos > consumed);
  }
  if (state != 0) fail(Code::kCorrupt, fmt::format("zstd: {} bytes end inside a frame", in.size()));
}

bool has_codec(std::string_view codec) {
  if (codec.starts_with(kSlicePrefix)) return true;
  if (codec.starts_with(kHdf5CodecPrefix)) return has_hdf5_codec(codec);
  const std::string_view name = base_name(codec);
  return name == "stream.zstd" || name == "stream.rot13";
}

Bytes decode(std::string_view codec, ByteView in, std::uint64_t max_output_bytes) {
  if (codec.starts_with(kSlicePrefix)) return slice(codec, in, max_output_bytes);
  if (codec.starts_with(kHdf5CodecPrefix)) return decode_hdf5(codec, in, max_output_bytes);
  const std::string_view name = base_name(codec);
  if (name == "stream.zstd") return decode_zstd(in, max_output_bytes);
  if (name == "stream.rot13") return swap_case(in, max_output_bytes);
  fail(Code::kUnsupported, fmt::format("codec \"{:.100}\" is not known", codec),
       "stream.zstd and stream.rot13, version 1, can be read");
}

}  // namespace tessera
