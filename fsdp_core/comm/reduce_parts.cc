#include "fsdp_core/comm/reduce_parts.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

namespace tessera::fsdp {

namespace {

constexpr std::int64_t kBlock = 512;      // elements accumulated in the first-level cache
constexpr std::int64_t kGrain = 1 << 15;  // elements worth a thread

template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>, float, T>;

// GCC leaves such loops scalar at -O2; Clang does not.
#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

template <class T, class Join>
void reduce_range(T* out, std::span<const void* const> parts, std::int64_t begin, std::int64_t end,
                  bool average, Join join) {
  using A = Accumulator<T>;
  A sums[kBlock];
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const std::int64_t count = std::min(kBlock, end - at);
    const T* first = static_cast<const T*>(parts[0]) + at;
    for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<A>(first[i]);
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + at;
      for (std::int64_t i = 0; i < count; ++i) sums[i] = join(sums[i], static_cast<A>(part[i]));
    }
    if constexpr (std::is_floating_point_v<A>)
      if (average)
        for (std::int64_t i = 0; i < count; ++i) sums[i] /= static_cast<A>(parts.size());
    for (std::int64_t i = 0; i < count; ++i) out[at + i] = static_cast<T>(sums[i]);
  }
}

#ifndef __clang__
#pragma GCC pop_options
#endif

template <class T>
void reduce_typed(void* out, std::span<const void* const> parts, std::int64_t numel,
                  Reduce reduce) {
  using A = Accumulator<T>;
  const auto run = [&](auto join) {
    const bool average = reduce == Reduce::kAverage;
    const auto range = [&](std::int64_t begin, std::int64_t end) {
      reduce_range(static_cast<T*>(out), parts, begin, end, average, join);
    };
    if (numel < 2 * kGrain)
      range(0, numel);
    else
      at::parallel_for(0, numel, kGrain, range);
  };
  // A NaN must survive: it is how an overflow is found.
  if (reduce == Reduce::kMax)
    run([](A a, A b) { return (a > b || a != a) ? a : b; });
  else if (reduce == Reduce::kMin)
    run([](A a, A b) { return (a < b || a != a) ? a : b; });
  else
    run([](A a, A b) { return static_cast<A>(a + b); });
}

}  // namespace

void reduce_parts(void* out, std::span<const void* const> parts, std::int64_t numel,
                  at::ScalarType dtype, Reduce reduce) {
  if (numel == 0) return;
  switch (dtype) {
    case at::kFloat:
      return reduce_typed<float>(out, parts, numel, reduce);
    case at::kDouble:
      return reduce_typed<double>(out, parts, numel, reduce);
    case at::kBFloat16:
      return reduce_typed<c10::BFloat16>(out, parts, numel, reduce);
    case at::kHalf:
      return reduce_typed<c10::Half>(out, parts, numel, reduce);
    case at::kLong:
      return reduce_typed<std::int64_t>(out, parts, numel, reduce);
    case at::kInt:
      return reduce_typed<std::int32_t>(out, parts, numel, reduce);
    case at::kShort:
      return reduce_typed<std::int16_t>(out, parts, numel, reduce);
    case at::kChar:
      return reduce_typed<std::int8_t>(out, parts, numel, reduce);
    case at::kByte:
      return reduce_typed<std::uint8_t>(out, parts, numel, reduce);
    case at::kBool:
      return reduce_typed<bool>(out, parts, numel, reduce);
    default:
      fail(Code::kUnsupported, fmt::format("no reduction of {} on CPUs", c10::toString(dtype)),
           "reduce in a type that has arithmetic, and cast the result");
  }
}

}  // namespace tessera::fsdp
