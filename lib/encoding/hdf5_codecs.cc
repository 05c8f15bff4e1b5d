#include "lib/encoding/hdf5_codecs.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

namespace tessera {
namespace {

// The most that deflate makes of one byte.
constexpr std::uint64_t kMaxDeflateRatio = 1032;
constexpr std::uint64_t kDeflateFreeBytes = 4096;

[[noreturn]] void unknown(std::string_view codec) {
  fail(Code::kUnsupported, fmt::format("codec \"{:.100}\" is not known", codec));
}

std::int64_t number(std::string_view codec, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) unknown(codec);
  return value;
}

/// What one filter may give, where the user's memory allows it.
std::uint64_t output_limit(std::string_view codec, std::string_view text,
                           std::uint64_t max_output_bytes) {
  const auto limit = static_cast<std::uint64_t>(number(codec, text));
  if (limit > max_output_bytes)
    fail(Code::kResourceExhausted,
         fmt::format("a compressed chunk of {} bytes is larger than the memory limit", limit),
         "raise --mem-limit");
  return limit;
}

Bytes inflate_all(ByteView in, std::uint64_t limit) {
  struct Stream {
    z_stream z{};
    Stream() {
      if (inflateInit(&z) != Z_OK) fail(Code::kResourceExhausted, "no memory for a zlib decoder");
    }
    ~Stream() { inflateEnd(&z); }
  } stream;
  const std::uint64_t honest = std::min(limit, in.size() * kMaxDeflateRatio + kDeflateFreeBytes);
  Bytes out(honest + 1);  // one more shows a stream that goes on
  std::size_t taken = 0, filled = 0;
  int state = Z_OK;
  while (state == Z_OK && filled < out.size()) {
    constexpr std::size_t kStep = std::numeric_limits<uInt>::max() / 2;
    stream.z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data() + taken));
    stream.z.avail_in = static_cast<uInt>(std::min(kStep, in.size() - taken));
    stream.z.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream.z.avail_out = static_cast<uInt>(std::min(kStep, out.size() - filled));
    const uInt had_in = stream.z.avail_in, had_out = stream.z.avail_out;
    state = inflate(&stream.z, Z_NO_FLUSH);
    taken += had_in - stream.z.avail_in;
    filled += had_out - stream.z.avail_out;
    if (state == Z_BUF_ERROR) break;
  }
  if (filled > honest)
    fail(Code::kCorrupt, fmt::format("deflate: decodes to more than {} bytes", honest));
  if (state != Z_STREAM_END)
    fail(Code::kCorrupt,
         fmt::format("deflate: {}", stream.z.msg ? stream.z.msg : "the stream ends early"));
  out.resize(filled);
  return out;
}

Bytes decode_lzf(ByteView in, std::uint64_t limit) {
  Bytes out;
  std::size_t at = 0;
  const auto next = [&] {
    if (at == in.size()) fail(Code::kCorrupt, "lzf: the stream ends early");
    return static_cast<std::size_t>(in[at++]);
  };
  const auto room = [&](std::size_t length) {
    if (length > limit - out.size())
      fail(Code::kCorrupt, fmt::format("lzf: decodes to more than {} bytes", limit));
  };
  while (at < in.size()) {
    const std::size_t control = next();
    if (control < 32) {
      const std::size_t length = control + 1;
      if (length > in.size() - at) fail(Code::kCorrupt, "lzf: the stream ends early");
      room(length);
      out.insert(out.end(), in.begin() + static_cast<std::ptrdiff_t>(at),
                 in.begin() + static_cast<std::ptrdiff_t>(at + length));
      at += length;
      continue;
    }
    std::size_t length = control >> 5;
    if (length == 7) length += next();
    length += 2;
    const std::size_t back = ((control & 31) << 8) + next() + 1;
    if (back > out.size()) fail(Code::kCorrupt, "lzf: a reference before the beginning");
    room(length);
    for (std::size_t from = out.size() - back; length > 0; --length) out.push_back(out[from++]);
  }
  return out;
}

Bytes unshuffle(std::string_view codec, std::string_view text, ByteView in) {
  const auto size = static_cast<std::size_t>(number(codec, text));
  Bytes out(in.begin(), in.end());
  if (size <= 1 || size > in.size()) return out;
  const std::size_t count = in.size() / size;
  for (std::size_t j = 0; j < size; ++j) {
    const std::byte* from = in.data() + j * count;
    std::byte* to = out.data() + j;
    for (std::size_t i = 0; i < count; ++i) to[i * size] = from[i];
  }
  return out;  // what is left over past the last element stands where it was
}

/// Fletcher's sum over big-endian 16-bit words, as HDF5 takes it.
std::uint32_t fletcher32(ByteView bytes) {
  std::uint32_t low = 0, high = 0;
  const auto fold = [&] {
    low = (low & 0xffff) + (low >> 16);
    high = (high & 0xffff) + (high >> 16);
  };
  std::size_t at = 0;
  for (std::size_t words = bytes.size() / 2; words > 0;) {
    // 360 words are the most whose sums fit 32 bits.
    std::size_t part = std::min<std::size_t>(words, 360);
    words -= part;
    for (; part > 0; --part, at += 2) {
      low +=
          (static_cast<std::uint32_t>(bytes[at]) << 8) | static_cast<std::uint32_t>(bytes[at + 1]);
      high += low;
    }
    fold();
  }
  if (bytes.size() % 2 != 0) {
    low += static_cast<std::uint32_t>(bytes[at]) << 8;
    high += low;
    fold();
  }
  fold();
  return (high << 16) | low;
}

Bytes check_fletcher32(ByteView in) {
  if (in.size() < 4) fail(Code::kCorrupt, "fletcher32: no room for a checksum");
  const ByteView data = in.first(in.size() - 4);
  const auto stored = load_le<std::uint32_t>(in.data() + data.size());
  const std::uint32_t sum = fletcher32(data);
  // HDF5 before 1.6.3 swapped the bytes of each half on little-endian machines.
  const std::uint32_t swapped = ((sum & 0x00ff00ff) << 8) | ((sum >> 8) & 0x00ff00ff);
  if (stored != sum && stored != swapped)
    fail(Code::kCorrupt,
         fmt::format("fletcher32: the chunk has checksum {:08x}, stored is {:08x}", sum, stored));
  return Bytes(data.begin(), data.end());
}

/// "hdf5.shuffle:4" -> {"shuffle", "4"}
std::pair<std::string_view, std::string_view> parts_of(std::string_view codec) {
  codec.remove_prefix(kHdf5CodecPrefix.size());
  const std::size_t colon = codec.find(':');
  if (colon == codec.npos) return {codec, {}};
  return {codec.substr(0, colon), codec.substr(colon + 1)};
}

}  // namespace

bool has_hdf5_codec(std::string_view codec) {
  const std::string_view name = parts_of(codec).first;
  return name == "deflate" || name == "lzf" || name == "shuffle" || name == "fletcher32";
}

Bytes decode_hdf5(std::string_view codec, ByteView in, std::uint64_t max_output_bytes) {
  const auto [name, text] = parts_of(codec);
  if (name == "deflate") return inflate_all(in, output_limit(codec, text, max_output_bytes));
  if (name == "lzf") return decode_lzf(in, output_limit(codec, text, max_output_bytes));
  if (in.size() > max_output_bytes)
    fail(Code::kCorrupt, fmt::format("decodes to more than {} bytes", max_output_bytes));
  if (name == "shuffle") return unshuffle(codec, text, in);
  if (name == "fletcher32") return check_fletcher32(in);
  unknown(codec);
}

}  // namespace tessera
