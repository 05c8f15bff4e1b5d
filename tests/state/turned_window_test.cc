// Codes that lie turned, read for many outputs and computed for a few: the same numbers as from what
// these alone are made of, and as the formula gives.
#include <tessera/base/bytes.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "lib/state/turned_codes.h"
#include "lib/state/windowed_recipe.h"

namespace turned_window_test {

using namespace tessera;
using Packing = TurnedWeight::Packing;

namespace {

/// A weight's parts as stored, and what they mean.
struct Stored {
  TurnedWeight weight;
  std::vector<Bytes> parts;
  std::vector<std::size_t> widths;  // of their elements, in bytes
  std::vector<float> numbers;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

/// Codes [row][column] in words of 32 bits: of one column, or of one row in AWQ's order.
std::vector<std::uint32_t> packed(const std::vector<std::uint32_t>& codes, std::int64_t rows,
                                  std::int64_t columns, unsigned bits, bool along_rows) {
  constexpr std::array<std::int64_t, 8> kAwq = {0, 4, 1, 5, 2, 6, 3, 7};
  const std::int64_t per = 32 / bits;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * columns / per), 0);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::uint32_t code = codes[static_cast<std::size_t>(r * columns + c)];
      const std::int64_t word = along_rows ? r * (columns / per) + c / per : r / per * columns + c;
      const std::int64_t place =
          along_rows ? (bits == 4 ? kAwq[static_cast<std::size_t>(c % 8)] : c % per) : r % per;
      words[static_cast<std::size_t>(word)] |= code << (place * bits);
    }
  return words;
}

Stored make(Packing packing, int bits, std::int64_t outputs, std::int64_t inputs,
            std::int64_t groups, bool grouped, std::mt19937& random) {
  Stored out;
  TurnedWeight& w = out.weight;
  w.packing = packing;
  w.outputs = outputs;
  w.inputs = inputs;
  w.bits = bits;
  w.groups = groups;
  w.group_size = inputs / groups;
  w.grouped_inputs = grouped;
  w.scale_dtype = DType::kFloat32;
  const auto ubits = static_cast<unsigned>(bits);
  const auto any = [&] { return static_cast<std::uint32_t>(random()) & ((1U << ubits) - 1); };
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(inputs * outputs)),
      zeros(static_cast<std::size_t>(groups * outputs));
  for (std::uint32_t& code : codes) code = any();
  for (std::uint32_t& zero : zeros) zero = any();
  std::vector<float> scales(zeros.size());
  for (float& scale : scales) scale = static_cast<float>(random() % 1000 + 1) / 256;
  std::vector<std::int32_t> group(static_cast<std::size_t>(inputs));
  for (std::int64_t i = 0; i < inputs; ++i)
    group[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
        grouped ? static_cast<std::int64_t>(random()) % groups : i / w.group_size);
  const bool awq = packing == Packing::kAlongOutputs;
  out.parts = {bytes_of(packed(codes, inputs, outputs, ubits, awq)), bytes_of(scales)};
  // GPTQ keeps zeros side by side without AWQ's order.
  std::vector<std::uint32_t> words(zeros.size() * ubits / 32, 0);
  if (awq) {
    words = packed(zeros, groups, outputs, ubits, true);
  } else {
    for (std::size_t i = 0; i < zeros.size(); ++i)
      words[i * ubits / 32] |= zeros[i] << (i * ubits % 32);
  }
  out.parts.push_back(bytes_of(words));
  if (grouped) out.parts.push_back(bytes_of(group));
  out.widths = {4, 4, 4, 4};
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < inputs; ++i) {
      const auto at = static_cast<std::size_t>(group[static_cast<std::size_t>(i)] * outputs + o);
      const std::uint32_t code = codes[static_cast<std::size_t>(i * outputs + o)];
      out.numbers.push_back((static_cast<float>(code) - static_cast<float>(zeros[at])) *
                            scales[at]);
    }
  return out;
}

/// What a recipe asks for, out of what is stored.
std::vector<Bytes> gathered(const Stored& stored, const ElementRecipe& recipe, ElementRange range) {
  std::vector<Bytes> out;
  const std::vector<ElementRuns> needs = recipe.needs(range.begin, range.end);
  for (std::size_t p = 0; p < needs.size(); ++p) {
    Bytes part;
    const std::size_t width = stored.widths[p];
    for (std::int64_t r = 0; r < needs[p].repeats; ++r) {
      const auto from = static_cast<std::size_t>(needs[p].first + r * needs[p].step) * width;
      const auto count = static_cast<std::size_t>(needs[p].count) * width;
      REQUIRE(from + count <= stored.parts[p].size());
      part.insert(part.end(), stored.parts[p].begin() + static_cast<std::ptrdiff_t>(from),
                  stored.parts[p].begin() + static_cast<std::ptrdiff_t>(from + count));
    }
    out.push_back(std::move(part));
  }
  return out;
}

std::vector<float> computed(const Stored& stored, const WindowedRecipe& recipe, ElementRange window,
                            std::int64_t begin, std::int64_t end) {
  const std::vector<Bytes> parts = gathered(stored, recipe, window);
  const std::vector<ByteView> views(parts.begin(), parts.end());
  std::vector<float> out(static_cast<std::size_t>(end - begin));
  recipe.compute_within(window, begin, end, views, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

TEST_CASE("turned codes of a window give each part of it the numbers that they mean") {
  std::mt19937 random(11);
  struct Kind {
    Packing packing;
    int bits;
  };
  for (const Kind kind : {Kind{Packing::kAlongInputs, 4}, Kind{Packing::kAlongInputs, 8},
                          Kind{Packing::kAlongInputs, 2}, Kind{Packing::kAlongOutputs, 4}})
    for (const bool grouped : {false, true}) {
      const std::int64_t outputs = 96, inputs = 160;
      const Stored stored = make(kind.packing, kind.bits, outputs, inputs, 5, grouped, random);
      const auto recipe = turned_codes(stored.weight);
      const auto* windowed = dynamic_cast<const WindowedRecipe*>(recipe.get());
      REQUIRE(windowed != nullptr);
      INFO("packing " << static_cast<int>(kind.packing) << ", " << kind.bits << " bits, "
                      << grouped);
      for (int round = 0; round < 12; ++round) {
        // A window of whole outputs, and a range in it that may begin and end within them.
        const std::int64_t first = static_cast<std::int64_t>(random() % 96);
        const std::int64_t last = first + 1 + static_cast<std::int64_t>(random()) % (96 - first);
        const ElementRange window{first * inputs, last * inputs};
        const std::int64_t begin =
            window.begin + static_cast<std::int64_t>(random()) % (window.end - window.begin);
        const std::int64_t end =
            begin + 1 + static_cast<std::int64_t>(random()) % (window.end - begin);
        const std::vector<float> want(stored.numbers.begin() + begin, stored.numbers.begin() + end);
        CHECK(computed(stored, *windowed, window, begin, end) == want);
        CHECK(computed(stored, *windowed, {begin, end}, begin, end) == want);
      }
      const ElementRange all = windowed->read_window(outputs * inputs - 1, 1 << 20);
      CHECK((all.begin == 0 && all.end == outputs * inputs));
    }
}

TEST_CASE("windows of turned codes are whole blocks, one behind the other") {
  TurnedWeight weight;
  weight.outputs = 20000;
  weight.inputs = 8192;
  weight.groups = 64;
  weight.group_size = 128;
  const auto recipe = turned_codes(weight);
  const auto& windowed = dynamic_cast<const WindowedRecipe&>(*recipe);
  std::int64_t at = 0;
  const std::int64_t all = weight.outputs * weight.inputs;
  while (at < all) {
    const ElementRange window = windowed.read_window(at, 16 << 20);
    REQUIRE((window.begin == at && window.end > at));
    CHECK((window.end == all || (window.end - at) % recipe->at_once() == 0));
    CHECK(windowed.read_window(window.end - 1, 16 << 20).begin == at);
    at = window.end;
  }
  CHECK(at == all);
}

}  // namespace turned_window_test
