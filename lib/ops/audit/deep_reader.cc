#include "lib/ops/audit/deep_reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/base/append.h"
#include "lib/base/damage.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

constexpr std::size_t kLeastElements = 16;
constexpr std::uint64_t kMostEvery = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostCacheBytes = std::uint64_t{1} << 30;

bool is_read(const TensorFact& fact, const DeepPlan& plan) {
  return fact.measured && plan.wants(fact);
}

}  // namespace

DeepReader::DeepReader(FileSystem& fs, AuditRun& run, const AuditOptions& options, DeepPlan plan)
    : fs_(fs), run_(run), options_(options), plan_(std::move(plan)) {
  std::size_t most = 1;  // tensors of one checkpoint
  for (const CheckpointFacts& each : run.checkpoints) {
    std::size_t tensors = 0;
    for (const AuditPart& part : each.parts) {
      sampling_.bytes += bytes_of(part, 1);
      tensors += static_cast<std::size_t>(std::ranges::count_if(
          part.tensors, [&](const TensorFact& fact) { return is_read(fact, plan_); }));
    }
    most = std::max(most, tensors);
  }
  // Two checkpoints' samples at a time take a quarter of the limit.
  const std::uint64_t room = options.transfer.memory_limit_bytes / 8 / sizeof(double) / most;
  plan_.elements = std::clamp<std::size_t>(room, kLeastElements, plan_.elements);
  sampling_.sampled_elements = plan_.elements;
  if (!options.cache.empty() && !fs.stat(options.cache)) fs.create_directory(options.cache);
  const auto to_read = [&] {
    std::uint64_t bytes = 0;
    for (const CheckpointFacts& each : run.checkpoints)
      for (const AuditPart& part : each.parts)
        if (options.cache.empty() || !fs_.stat(cache_path(part)))
          bytes += bytes_of(part, plan_.every);
    return bytes;
  };
  std::uint64_t bytes = to_read();
  for (std::uint64_t before = 0;
       options.budget_bytes > 0 && bytes > options.budget_bytes && plan_.every < kMostEvery;
       bytes = to_read()) {
    if (bytes == before && plan_.every > 1024) break;  // what is left is never sampled
    before = bytes;
    plan_.every *= 2;
  }
  sampling_.every = plan_.every;
  std::int64_t fewest = 0;  // blocks that were chosen of a tensor
  for (const CheckpointFacts& each : run.checkpoints)
    for (const AuditPart& part : each.parts)
      for (const TensorFact& fact : part.tensors) {
        if (!is_read(fact, plan_)) continue;
        const BlockChoice choice = choose_blocks(run.names.name(fact.id), fact.numel, plan_.every);
        if (choice.every > 1 && (fewest == 0 || choice.chosen() < fewest)) fewest = choice.chosen();
      }
  if (fewest > 0) sampling_.seen_share = 1 - std::pow(0.05, 1 / static_cast<double>(fewest));
  if (options.transfer.progress) options.transfer.progress->total_bytes += bytes;
}

std::string DeepReader::share_text() const {
  return plan_.every == 1 ? "" : fmt::format(" in the 1/{} that was read", plan_.every);
}

std::uint64_t DeepReader::bytes_of(const AuditPart& part, std::uint64_t every) const {
  std::uint64_t bytes = 0;
  for (const TensorFact& fact : part.tensors) {
    if (!is_read(fact, plan_)) continue;
    const BlockChoice choice = choose_blocks(run_.names.name(fact.id), fact.numel, every);
    bytes += static_cast<std::uint64_t>(chosen_numel(choice, fact.numel)) * fact.element_bytes;
  }
  return bytes;
}

std::string DeepReader::cache_path(const AuditPart& part) const {
  Sha256 sum;
  std::string text = fmt::format("{} {} {} {} {}", part.identity, plan_.every, plan_.elements,
                                 plan_.replicas, part.prefix);
  for (const TensorFact& fact : part.tensors)
    if (is_read(fact, plan_)) text += "\n" + run_.names.name(fact.id);
  sum.update(as_bytes(text));
  return join_path(options_.cache, hex(sum.finish()) + ".json");
}

std::optional<DeepNumbers> DeepReader::load(const AuditPart& part) const {
  if (options_.cache.empty()) return std::nullopt;
  const std::string path = cache_path(part);
  const auto [folder, name] = split_path(path);
  const auto directory = fs_.open_directory(folder);
  const auto info = directory->stat(name);
  if (!info || info->type != FileType::kRegular || info->size_bytes > kMostCacheBytes)
    return std::nullopt;
  Bytes text(static_cast<std::size_t>(info->size_bytes));
  directory->open(name)->read_at(0, text);
  return decode_deep_numbers(text, name, run_.names);
}

/// A cache that cannot be written is no reason to fail.
void DeepReader::store(const AuditPart& part, const DeepNumbers& numbers) {
  if (options_.cache.empty()) return;
  const std::string path = cache_path(part);
  const auto [folder, name] = split_path(path);
  const std::string stage = join_path(folder, "." + name + ".tmp");
  try {
    fs_.remove_tree(stage);
    const std::string text = encode_deep_numbers(name, numbers, run_.names);
    const auto file = fs_.create(stage, IoMode::kBuffered);
    file->write_at(0, as_bytes(text));
    file->close();
    fs_.rename(stage, path);
  } catch (const Error& error) {
    if (!std::exchange(says_cache_trouble_, true))
      run_.notes.push_back({Finding::kNone, Severity::kWarning,
                            "the cache could not be written: " + error.status().message, "", ""});
  }
}

DeepNumbers DeepReader::read_part(const AuditPart& part, AuditedCheckpoint& row) {
  if (auto known = load(part)) {
    row.from_cache = true;
    return std::move(*known);
  }
  DeepNumbers numbers = scan_part(fs_, part, options_, plan_, run_.names);
  row.bytes_read += numbers.bytes_read;
  sampling_.bytes_read += numbers.bytes_read;
  store(part, numbers);
  return numbers;
}

std::optional<DeepNumbers> DeepReader::read(std::size_t checkpoint) {
  CheckpointFacts& facts = run_.checkpoints[checkpoint];
  if (!facts.row.complete) return std::nullopt;
  DeepNumbers all;
  try {
    for (const AuditPart& part : facts.parts) {
      DeepNumbers numbers = read_part(part, facts.row);
      append(all.tensors, std::move(numbers.tensors));
      append(all.drifted, std::move(numbers.drifted));
      if (all.drift.empty()) all.drift = numbers.drift;
      if (all.odd_steps == 0) all.odd_step = numbers.odd_step;
      all.odd_steps += numbers.odd_steps;
    }
  } catch (const Error& error) {
    if (!is_damage(error.code())) throw;
    facts.row.complete = false;
    facts.row.problem = error.status().to_string();
    return std::nullopt;
  }
  std::ranges::sort(all.tensors, {}, &TensorNumbers::id);
  for (const TensorNumbers& t : all.tensors)
    sampling_.norm_error = std::max(sampling_.norm_error, t.l2_error);
  return all;
}

}  // namespace tessera
