// What audit --deep reads: numbers, sampling, the cache, limits; and trend.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "lib/ops/audit/deep_scan.h"
#include "tests/support/rank_archive.h"
#include "tests/support/training_run.h"

namespace audit_deep_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

std::string findings_text(const AuditReport& report) {
  std::string text;
  for (const Note& note : report.findings)
    text +=
        fmt::format("{} {} {} {}\n", code_text(note.code), note.file, note.tensor, note.message);
  for (const AuditLayer& layer : report.layers) {
    text += layer.name;
    for (const auto* values : {&layer.norm, &layer.update, &layer.v_max})
      for (const auto& value : *values) text += fmt::format(" {:.17g}", value.value_or(-1));
    text += "\n";
  }
  return text;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

double change_of(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += (static_cast<double>(b[i]) - a[i]) * (static_cast<double>(b[i]) - a[i]);
  return std::sqrt(sum) / norm_of(a);
}

TrendReport trend(FileSystem& fs, const std::string& glob, TrendOf of) {
  TrendOptions options;
  options.tensors = {glob};
  options.of = of;
  return trend_of_run(fs, "/run", options);
}

/// One large matrix, saved once for each list of elements that are NaN.
void save_large(MemoryFileSystem& fs, const std::vector<std::vector<std::size_t>>& bad) {
  constexpr std::size_t kNumel = 40 * 32768;
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (std::size_t step = 0; step < bad.size(); ++step) {
    std::vector<float> values(kNumel);
    for (float& x : values) x = normal(random);
    for (const std::size_t at : bad[step]) values[at] = NAN;
    RankArchive archive;
    const Value tensor = archive.tensor({40, 32768}, values);
    fs.write_file(fmt::format("/run/step_{}.pt", step + 1), archive.render(dict({{"w", tensor}})));
  }
}

}  // namespace

TEST_CASE("norms, changes and second moments of layers and trends are those of the tensors") {
  MemoryFileSystem fs;
  TrainingRun run;
  std::vector<TrainingRun> saved;
  for (int i = 0; i < 3; ++i) {
    run.train(10);
    run.save(fs);
    saved.push_back(run);
  }
  const auto weight = [&](std::size_t at) { return saved[at]["layers.1.mlp.weight"].w; };
  const TrendReport norms = trend(fs, "model.layers.1.mlp.weight", TrendOf::kNorm);
  const TrendReport updates = trend(fs, "model.layers.1.mlp.weight", TrendOf::kUpdate);
  const TrendReport moments = trend(fs, "model.layers.1.mlp.weight", TrendOf::kVMax);
  REQUIRE(norms.lines.size() == 1);
  REQUIRE(updates.lines.size() == 1);
  REQUIRE(moments.lines.size() == 1);
  CHECK_FALSE(updates.lines[0].values[0]);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(*norms.lines[0].values[i] == Approx(norm_of(weight(i))).epsilon(1e-12));
    const std::vector<float>& v = saved[i]["layers.1.mlp.weight"].v;
    CHECK(*moments.lines[0].values[i] == Approx(*std::ranges::max_element(v)).epsilon(1e-12));
    if (i > 0)
      CHECK(*updates.lines[0].values[i] ==
            Approx(change_of(weight(i - 1), weight(i))).epsilon(1e-12));
  }
  const AuditReport report = audited(fs, true);
  const auto layer = std::ranges::find(report.layers, "model.layers.1", &AuditLayer::name);
  REQUIRE(layer != report.layers.end());
  const double both = std::hypot(norm_of(weight(2)), norm_of(saved[2]["layers.1.norm.weight"].w));
  CHECK(*layer->norm[2] == Approx(both).epsilon(1e-12));
  CHECK(*layer->update[2] > 0);
  // By a sample of 512 of the matrix' 4096 elements.
  const auto norm_weight = [&](std::size_t at) { return saved[at]["layers.1.norm.weight"].w; };
  const double changes =
      std::hypot(change_of(weight(1), weight(2)) * norm_of(weight(1)),
                 change_of(norm_weight(1), norm_weight(2)) * norm_of(norm_weight(1)));
  CHECK(*layer->update[2] ==
        Approx(changes / std::hypot(norm_of(weight(1)), norm_of(norm_weight(1)))).epsilon(0.1));
  CHECK_THROWS_WITH(trend(fs, "nothing.*", TrendOf::kNorm), Contains("matches no"));
}

TEST_CASE("the same is found with any memory limit and any number of threads") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 3; ++i) {
    run.train(10);
    if (i == 2) run["lm_head.weight"].w[3] = NAN;
    run.save(fs);
  }
  const std::string once = findings_text(audited(fs, true));
  CHECK_THAT(once, Contains("AU040"));
  for (const int threads : {1, 2, 5})
    CHECK(findings_text(audited(fs, true, [&](AuditOptions& o) {
            o.transfer.threads = threads;
            o.transfer.memory_limit_bytes = std::uint64_t{1} << 20;
          })) == once);
}

TEST_CASE("second moments of any healthy gradients stay above what they can decay to") {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    MemoryFileSystem fs;
    TrainingRun run(seed, 1, 16);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> size(-6, 0);
    for (int i = 0; i < 8; ++i) {
      for (TrainedTensor& t : run.tensors()) t.gradient = std::pow(10, size(random));
      run.train(1 + static_cast<int>(random() % 40));
      run.save(fs);
    }
    const AuditReport report = audited(fs, true);
    INFO(trouble(report));
    CHECK_FALSE(found(report, "AU023"));
    CHECK_FALSE(found(report, "AU022"));
  }
}

TEST_CASE("a budget reads a part of each tensor, and says what that may have missed") {
  MemoryFileSystem fs;
  std::vector<std::size_t> many;  // in 30 of 40 blocks
  for (std::size_t block = 0; block < 30; ++block) many.push_back(block * 32768 + 7);
  save_large(fs, {{}, many});
  const AuditReport whole = audited(fs, true);
  CHECK(whole.sampling.every == 1);
  CHECK(whole.sampling.seen_share == 0);
  CHECK(whole.sampling.bytes_read == whole.sampling.bytes);
  const auto budget = [](std::uint64_t bytes) {
    return [bytes](AuditOptions& o) { o.budget_bytes = bytes; };
  };
  const AuditReport part = audited(fs, true, budget(whole.sampling.bytes / 4));
  CHECK(part.sampling.every == 4);
  CHECK(part.sampling.bytes == whole.sampling.bytes);
  CHECK(part.sampling.bytes_read <= whole.sampling.bytes / 4);
  CHECK(part.sampling.seen_share == Approx(1 - std::pow(0.05, 1.0 / 10)));
  CHECK(found(part, "AU040", "step_2.pt", "w"));
  CHECK(found(part, "AU040")->message.find("in the 1/4 that was read") != std::string::npos);
  // The norm is within a few of the standard errors that are stated.
  const double exact = *whole.layers[0].norm[0], near = *part.layers[0].norm[0];
  CHECK(part.sampling.norm_error > 0);
  CHECK(std::abs(near / exact - 1) < 6 * part.sampling.norm_error);
}

TEST_CASE("a defect that fills the share that is stated is seen 19 times in 20") {
  constexpr std::int64_t kBlocks = 64, kNumel = kBlocks * kAuditBlock;
  constexpr int kRounds = 2000;
  std::mt19937_64 random(5);
  for (const std::uint64_t every : {2, 4, 16}) {
    int seen = 0;
    for (int round = 0; round < kRounds; ++round) {
      const BlockChoice choice = choose_blocks(fmt::format("w{}", round), kNumel, every);
      const double share = 1 - std::pow(0.05, 1 / static_cast<double>(choice.chosen()));
      std::vector<std::int64_t> blocks(kBlocks);
      std::iota(blocks.begin(), blocks.end(), 0);
      std::ranges::shuffle(blocks, random);
      blocks.resize(static_cast<std::size_t>(std::ceil(share * kBlocks)));
      seen += std::ranges::any_of(blocks, [&](std::int64_t block) {
        return block >= choice.first && (block - choice.first) % choice.every == 0;
      });
    }
    INFO(every);
    CHECK(seen >= kRounds * 0.94);
  }
}

TEST_CASE("what was read is kept by content, and read again where the cache is no use") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 3; ++i) {
    run.train(10);
    if (i == 2) run["lm_head.weight"].w[3] = NAN;
    run.save(fs);
  }
  const auto cached = [](AuditOptions& o) { o.cache = "/cache"; };
  const AuditReport first = audited(fs, true, cached), second = audited(fs, true, cached);
  CHECK(findings_text(first) == findings_text(second));
  CHECK(first.sampling.bytes_read == first.sampling.bytes);
  CHECK(second.sampling.bytes_read == 0);
  for (const AuditedCheckpoint& row : second.checkpoints) CHECK(row.from_cache);
  // One is written anew: it alone is read.
  run["lm_head.weight"].w[3] = 0;
  run.save(fs);
  const AuditReport third = audited(fs, true, cached);
  CHECK_FALSE(found(third, "AU040"));
  CHECK(third.sampling.bytes_read * 3 == third.sampling.bytes);
  // Files that are no such documents are replaced.
  for (const auto& [name, content] : fs.contents("/cache"))
    fs.write_file("/cache/" + name, as_bytes(content.substr(0, content.size() / 2)));
  const AuditReport fourth = audited(fs, true, cached);
  CHECK(fourth.sampling.bytes_read == fourth.sampling.bytes);
  CHECK(findings_text(fourth) == findings_text(third));
}

TEST_CASE("a checkpoint whose bytes are damaged is said to be, and the rest is judged") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 3; ++i) {
    run.train(10);
    run.save(fs);
  }
  Bytes bytes = fs.read_file("/run/step_20.pt");
  bytes[bytes.size() / 2] ^= std::byte{1};
  fs.write_file("/run/step_20.pt", bytes);
  CHECK(trouble(audited(fs, false)).empty());
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(found(report, "AU003", "step_20.pt"));
  CHECK(report.newest_sound == "step_30.pt");
}

}  // namespace audit_deep_test
