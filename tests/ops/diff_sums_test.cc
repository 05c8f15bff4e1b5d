// diff's sums over pairs against plain loops, and its runs against the order of threads.
#include "lib/ops/inspect/diff_sums.h"

#include <tessera/base/error.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/stat.h>
#include <tessera/storage/memory_file_system.h>
#include <tessera/tensor/cast.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <random>

#include "tests/support/safetensors_file.h"

namespace diff_sums_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string file_of(const std::vector<float>& values) {
  const std::string header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[" +
                             std::to_string(values.size()) + "],\"data_offsets\":[0," +
                             std::to_string(values.size() * 4) + "]}}";
  return safetensors_of(header, {reinterpret_cast<const char*>(values.data()), values.size() * 4});
}

/// Values where neighbours, zeros of both signs, infinities and NaN meet.
std::vector<float> values_of(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) {
    switch (random() % 4000) {
      case 0:
        x = std::numeric_limits<float>::quiet_NaN();
        break;
      case 1:
        x = random() % 2 ? std::numeric_limits<float>::infinity()
                         : -std::numeric_limits<float>::infinity();
        break;
      case 2:
        x = random() % 2 ? 0.0f : -0.0f;
        break;
      default:
        x = normal(random);
    }
  }
  return values;
}

struct Files {
  Files(const std::vector<float>& a, const std::vector<float>& b) {
    fs.write_file("/a.safetensors", as_bytes(file_of(a)));
    fs.write_file("/b.safetensors", as_bytes(file_of(b)));
  }
  DiffReport diff(const DiffOptions& options) {
    OpenedCheckpoint a = open_checkpoint(fs, "/a.safetensors"),
                     b = open_checkpoint(fs, "/b.safetensors");
    return diff_checkpoints(a, b, options);
  }
  MemoryFileSystem fs;
};

bool equal_under(const DiffOptions& options, float x, float y) {
  if (!options.abs && !options.rel && !options.ulp) return std::memcmp(&x, &y, sizeof x) == 0;
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y) && options.nan_equal;
  if (x == y) return true;
  if (std::isinf(x) || std::isinf(y)) return false;
  const double a = x, b = y, distance = std::abs(a - b);
  if (options.abs && distance <= *options.abs) return true;
  if (options.rel && distance <= *options.rel * std::max(std::abs(a), std::abs(b))) return true;
  if (!options.ulp) return false;
  const auto place = [](float value) {
    std::int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? -std::int64_t{bits & 0x7fffffff} : std::int64_t{bits};
  };
  return std::abs(place(x) - place(y)) <= *options.ulp;
}

}  // namespace

TEST_CASE("every number of a diff is that of a loop over the elements, with any threads") {
  const std::size_t count = (std::size_t{1} << 20) + 777;  // more than one run, and an odd strip
  std::vector<float> a = values_of(count, 1), b = a;
  const std::vector<float> other = values_of(count, 2);
  for (std::size_t i = 5000; i < count; i += 3)
    b[i] = i % 2 ? other[i] : std::nextafter(a[i], 100.0f);
  Files files(a, b);
  DiffOptions modes[5];
  modes[1].abs = 0.5;
  modes[2].rel = 1e-3;
  modes[3].ulp = 1;
  modes[4].abs = 0.1, modes[4].nan_equal = false;
  for (DiffOptions& options : modes) {
    std::int64_t different = 0, first = -1, nonfinite = 0;
    long double squares_a = 0, squares_b = 0, squares = 0, dot = 0;
    double max_abs = 0, max_rel = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (!equal_under(options, a[i], b[i]) && different++ == 0)
        first = static_cast<std::int64_t>(i);
      if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
        nonfinite += !((std::isnan(a[i]) && std::isnan(b[i])) || a[i] == b[i]);
        continue;
      }
      const double x = a[i], y = b[i], distance = std::abs(x - y);
      const double scale = std::max(std::abs(x), std::abs(y));
      max_abs = std::max(max_abs, distance);
      if (scale > 0) max_rel = std::max(max_rel, distance / scale);
      squares_a += x * x, squares_b += y * y, squares += distance * distance, dot += x * y;
    }
    std::vector<TensorDiff> all;
    for (const int threads : {1, 4}) {
      options.transfer.threads = threads;
      const DiffReport report = files.diff(options);
      REQUIRE(report.tensors.size() == 1);
      all.push_back(report.tensors[0]);
      const TensorDiff& found = all.back();
      CHECK(found.count == different);
      CHECK(found.first == first);
      CHECK(found.nonfinite_mismatch == nonfinite);
      CHECK(found.max_abs == max_abs);
      CHECK(found.max_rel == max_rel);
      CHECK(found.l2 == Approx(static_cast<double>(std::sqrt(squares))).epsilon(1e-13));
      CHECK(found.relative_l2 ==
            Approx(static_cast<double>(std::sqrt(squares / squares_a))).epsilon(1e-13));
      CHECK(found.cosine ==
            Approx(static_cast<double>(dot / std::sqrt(squares_a * squares_b))).epsilon(1e-13));
    }
    CHECK(all[0].l2 == all[1].l2);
    CHECK(all[0].cosine == all[1].cosine);
  }
}

TEST_CASE("the first difference alone is the first whatever the threads") {
  const std::vector<float> a(std::size_t{3} << 20, 1.0f);
  std::vector<float> b = a;
  b[a.size() - 5] = b[(std::size_t{1} << 20) + 9] = 2.0f;
  Files files(a, b);
  for (int round = 0; round < 3; ++round) {
    DiffOptions options;
    options.stop_at_first = true;
    options.transfer.threads = 3;
    const DiffReport report = files.diff(options);
    REQUIRE(report.tensors.size() == 1);
    CHECK(report.tensors[0].first == (std::int64_t{1} << 20) + 9);
    CHECK(report.tensors[0].count == 1);
  }
}

TEST_CASE("elements that differ cost what stat takes to look at them") {
  const std::size_t count = std::size_t{1} << 22;
  std::vector<float> a = values_of(count / 64, 3), b = values_of(count / 64, 4);
  for (int doubled = 0; doubled < 6; ++doubled) {
    const std::vector<float> half_a = a, half_b = b;
    a.insert(a.end(), half_a.begin(), half_a.end());
    b.insert(b.end(), half_b.begin(), half_b.end());
  }
  Files files(a, b);
  const auto seconds = [](const auto& run) {
    const std::clock_t before = std::clock();
    run();
    return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  };
  for (const bool tolerant : {false, true}) {
    double least = 1e9;
    for (int round = 0; round < 3; ++round) {
      const double stat = seconds([&] {
        OpenedCheckpoint opened = open_checkpoint(files.fs, "/a.safetensors");
        stat_checkpoint(opened, {});
      });
      DiffOptions options;
      if (tolerant) options.abs = 1e-3;
      const double diff = seconds([&] { files.diff(options); });
      least = std::min(least, diff / stat);
    }
    INFO("tolerance " << tolerant << ": " << least << " times stat");
    CHECK(least < 6);
  }
}

}  // namespace diff_sums_test
