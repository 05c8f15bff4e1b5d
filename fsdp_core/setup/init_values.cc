// The init functions: Philox 4x32-10 (Salmon et al. 2011), a function from (key, counter) to 128
// random bits. Key: the parameter's seed. Counter: half the element's index, so that an element has
// 64 bits of its own.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/meta_init.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

namespace tessera::fsdp::init {
namespace {

using Block = std::array<std::uint32_t, 4>;

Block philox(std::uint64_t key, std::uint64_t counter) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  Block c = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

/// The two words of element `index`.
std::array<std::uint32_t, 2> words_of(Seed seed, std::int64_t index) {
  const Block block = philox(seed.value, static_cast<std::uint64_t>(index) / 2);
  const std::size_t first = index % 2 == 0 ? 0 : 2;
  return {block[first], block[first + 1]};
}

void check(const Piece& piece, const char* function) {
  const auto refuse = [&](std::string why) {
    fail(Code::kInvalidArgument, fmt::format("init::{}: {}", function, why));
  };
  std::int64_t numel = 1;
  for (const std::int64_t size : piece.sizes) numel *= size;
  if (!piece.values.defined()) refuse("an undefined tensor");
  if (piece.begin < 0 || piece.begin > numel || piece.values.numel() > numel - piece.begin)
    refuse(fmt::format("elements [{}, {}) are outside a parameter of sizes [{}]", piece.begin,
                       piece.begin + piece.values.numel(), fmt::join(piece.sizes, ", ")));
  if (!at::isFloatingType(piece.values.scalar_type()))
    refuse(fmt::format("{} is not floating", piece.values.dtype().name()));
  if (!piece.values.is_contiguous()) refuse("the tensor is not contiguous");
}

/// values[i] = value_of(begin + i), in slices of bounded memory.
template <class F>
void fill(const Piece& piece, F&& value_of) {
  constexpr std::int64_t kSlice = 1 << 16;
  at::NoGradGuard no_grad;
  const at::Tensor flat = piece.values.detach().view({-1});
  const std::int64_t numel = flat.numel();
  std::vector<double> slice(static_cast<std::size_t>(std::min(kSlice, numel)));
  for (std::int64_t start = 0; start < numel; start += kSlice) {
    const std::int64_t count = std::min(kSlice, numel - start);
    at::parallel_for(0, count, 4096, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        slice[static_cast<std::size_t>(i)] = value_of(piece.begin + start + i);
    });
    flat.narrow(0, start, count)
        .copy_(at::from_blob(slice.data(), {count}, at::TensorOptions().dtype(at::kDouble)));
  }
}

}  // namespace

Seed Seed::of(std::uint64_t seed, std::string_view fqn) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const char c : fqn) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  const Block mixed = philox(seed, hash);
  return {std::uint64_t{mixed[0]} << 32 | mixed[1]};
}

Piece Piece::whole(const at::Tensor& parameter) { return {parameter, 0, parameter.sizes().vec()}; }

void constant_(const Piece& piece, double value) {
  check(piece, "constant_");
  at::NoGradGuard no_grad;
  piece.values.detach().fill_(value);
}
void zeros_(const Piece& piece) { constant_(piece, 0); }
void ones_(const Piece& piece) { constant_(piece, 1); }

void uniform_(const Piece& piece, Seed seed, double low, double high) {
  check(piece, "uniform_");
  if (!(low <= high))
    fail(Code::kInvalidArgument,
         fmt::format("init::uniform_: the range [{}, {}) is empty", low, high));
  fill(piece, [=](std::int64_t index) {
    const auto [a, b] = words_of(seed, index);
    const std::uint64_t bits = (std::uint64_t{a} << 32 | b) >> 11;
    return low + (high - low) * (static_cast<double>(bits) * 0x1p-53);
  });
}

void normal_(const Piece& piece, Seed seed, double mean, double std) {
  check(piece, "normal_");
  if (!(std >= 0))
    fail(Code::kInvalidArgument, fmt::format("init::normal_: standard deviation {}", std));
  fill(piece, [=](std::int64_t index) {
    const auto [a, b] = words_of(seed, index);
    const double radius = std::sqrt(-2 * std::log((a + 1.0) * 0x1p-32));  // Box and Muller
    return mean + std * radius * std::cos(2 * std::numbers::pi * (b * 0x1p-32));
  });
}

void kaiming_uniform_(const Piece& piece, Seed seed, double a, Fan fan) {
  check(piece, "kaiming_uniform_");
  if (piece.sizes.size() < 2)
    fail(Code::kInvalidArgument,
         fmt::format("init::kaiming_uniform_: a parameter of sizes [{}] has no fan",
                     fmt::join(piece.sizes, ", ")));
  std::int64_t receptive = 1;
  for (std::size_t d = 2; d < piece.sizes.size(); ++d) receptive *= piece.sizes[d];
  const std::int64_t width = piece.sizes[fan == Fan::kIn ? 1 : 0] * receptive;
  if (width == 0) return;  // no elements either, or none that could be bounded
  const double bound = std::sqrt(6 / ((1 + a * a) * static_cast<double>(width)));
  uniform_(piece, seed, -bound, bound);
}

}  // namespace tessera::fsdp::init
