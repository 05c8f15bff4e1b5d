#include "lib/ops/audit/deep_scan.h"

#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "lib/ops/audit/stored_step.h"
#include "lib/ops/inspect/element_blocks.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/optim_values.h"
#include "lib/ops/inspect/stat_pass.h"
#include "lib/ops/verify/replicas.h"

namespace tessera {
namespace {

constexpr std::int64_t kWholeUpTo = 4;  // blocks of a tensor that is never sampled
constexpr double kGolden = 0.6180339887498949;

/// Elements that are kept, spread over what is read; a little off a regular grid, which rows of a
/// matrix might be in step with.
class KeptElements {
 public:
  KeptElements(std::int64_t total, std::size_t most)
      : total_(total), count_(std::min<std::int64_t>(total, static_cast<std::int64_t>(most))) {}

  /// `at`: how many were read before these.
  template <class Real>
  void add(std::span<const Real> values, std::int64_t at) {
    const std::int64_t end = at + static_cast<std::int64_t>(values.size());
    while (next_ < count_ && place(next_) < end)
      kept_.push_back(static_cast<double>(values[static_cast<std::size_t>(place(next_++) - at)]));
  }
  std::vector<double> take() { return std::move(kept_); }

 private:
  std::int64_t place(std::int64_t k) const {
    if (count_ == total_) return k;
    const double offset = static_cast<double>(k) * kGolden;
    const double at = (static_cast<double>(k) + offset - std::floor(offset)) *
                      static_cast<double>(total_) / static_cast<double>(count_);
    return std::min(total_ - 1, static_cast<std::int64_t>(at));
  }

  std::int64_t total_, count_, next_ = 0;
  std::vector<double> kept_;
};

/// Sums of squares by block: how far their total is known from some of them.
class BlockEnergy {
 public:
  template <class Real>
  void add(std::span<const Real> values) {
    double energy = 0;
    for (const Real v : values)
      if (std::isfinite(v)) energy += static_cast<double>(v) * static_cast<double>(v);
    ++count_;
    sum_ += energy;
    squares_ += energy * energy;
  }
  /// Relative standard error of the norm when `blocks` stand for all; 0: all were read.
  double norm_error(std::int64_t blocks) const {
    if (count_ >= blocks || count_ < 2 || sum_ <= 0) return 0;
    const double n = static_cast<double>(count_), mean = sum_ / n;
    const double variance = std::max(0.0, squares_ / n - mean * mean) * n / (n - 1);
    const double left = 1 - n / static_cast<double>(blocks);
    return std::sqrt(variance * left / n) / mean / 2;
  }

 private:
  std::int64_t count_ = 0;
  double sum_ = 0, squares_ = 0;
};

struct DeepScratch {
  Bytes bytes;
  std::vector<float> floats;
  std::vector<double> doubles;
};

class DeepTensorScan {
 public:
  DeepTensorScan(const Manifest& manifest, const TensorReader& reader, const DeepPlan& plan,
                 std::int64_t piece, DeepScratch& scratch, const CancelToken* cancel)
      : manifest_(manifest),
        reader_(reader),
        plan_(plan),
        piece_(piece),
        scratch_(scratch),
        cancel_(cancel) {}

  TensorNumbers scan(const TensorFact& fact, std::string_view name) {
    const DType dtype = manifest_.tensors[fact.index].spec.dtype;
    return is_float_exact(dtype) ? scan_as<float>(fact, name, dtype)
                                 : scan_as<double>(fact, name, dtype);
  }

 private:
  template <class Real>
  TensorNumbers scan_as(const TensorFact& fact, std::string_view name, DType dtype) {
    const BlockChoice choice = choose_blocks(name, fact.numel, plan_.every);
    const std::int64_t wanted = chosen_numel(choice, fact.numel);
    TensorReader::Reading reading(reader_, {&fact.index, 1});
    StatPass pass(dtype, 1, false);
    KeptElements kept(wanted, plan_.elements);
    BlockEnergy energy;
    std::uint32_t crc = 0;
    std::int64_t done = 0;
    const auto look = [&](std::int64_t begin, std::int64_t end) {
      if (cancel_) cancel_->check();
      scratch_.bytes.resize(static_cast<std::size_t>(end - begin) * fact.element_bytes);
      reading.read(fact.index, begin, end, scratch_.bytes);
      for (std::int64_t at = begin; at < end; at += kAuditBlock) {
        const auto count = static_cast<std::size_t>(std::min(kAuditBlock, end - at));
        const ByteView bytes =
            ByteView(scratch_.bytes)
                .subspan(static_cast<std::size_t>(at - begin) * fact.element_bytes,
                         count * fact.element_bytes);
        crc = crc32(crc, bytes);
        const std::span<const Real> values = numbers<Real>(dtype, bytes, count);
        pass.add(values, at);
        kept.add(values, done);
        if (choice.every > 1) energy.add(values);
        done += static_cast<std::int64_t>(count);
      }
    };
    if (choice.every == 1) {
      for (std::int64_t at = 0; at < fact.numel; at += piece_)
        look(at, std::min(fact.numel, at + piece_));
    } else {
      for (std::int64_t b = choice.first; b < choice.blocks; b += choice.every)
        for (std::int64_t at = b * kAuditBlock, end = std::min(fact.numel, at + kAuditBlock);
             at < end; at += piece_)
          look(at, std::min(end, at + piece_));
    }
    TensorStat stat;
    pass.finish(stat);
    TensorNumbers out;
    out.id = fact.id;
    out.count = done;
    out.nan = stat.nan;
    out.inf = stat.pos_inf + stat.neg_inf;
    out.first_bad =
        std::min(stat.first_nan.value_or(INT64_MAX), stat.first_inf.value_or(INT64_MAX));
    if (out.nan + out.inf == 0) out.first_bad = -1;
    const double share = done > 0 ? static_cast<double>(fact.numel) / static_cast<double>(done) : 1;
    out.l2 = stat.l2.value_or(0) * std::sqrt(share);
    out.l2_error = energy.norm_error(choice.blocks);
    out.mean = stat.mean.value_or(0);
    out.abs_max = stat.abs_max.value_or(0);
    out.all_zero = stat.all_zero;
    out.digest = mix_key(mix_key(mix_key(crc + 1, static_cast<std::uint64_t>(fact.numel)),
                                 std::bit_cast<std::uint64_t>(out.l2)),
                         std::bit_cast<std::uint64_t>(out.mean));
    out.sample = kept.take();
    return out;
  }

  template <class Real>
  std::span<const Real> numbers(DType dtype, ByteView bytes, std::size_t count) {
    if constexpr (std::is_same_v<Real, float>) {
      return floats_of(dtype, bytes, scratch_.floats);
    } else {
      scratch_.doubles.resize(count);
      to_double(dtype, bytes, scratch_.doubles);
      return scratch_.doubles;
    }
  }

  const Manifest& manifest_;
  const TensorReader& reader_;
  const DeepPlan& plan_;
  const std::int64_t piece_;
  DeepScratch& scratch_;
  const CancelToken* cancel_;
};

/// Copies of tensors that several ranks stored; as far as checksums answer, nothing is read.
void compare_replicas(OpenedCheckpoint& opened, const std::vector<TensorFact>& facts,
                      const AuditOptions& options, DeepNumbers& out) {
  std::vector<std::uint32_t> several;
  for (const TensorFact& fact : facts)
    if (opened.manifest.tensors[fact.index].chunk_count > 1) several.push_back(fact.index);
  if (several.empty()) return;
  std::ranges::sort(several);
  opened.locate(several, read_options(options.transfer));
  const CopyComparison compared = compare_copies(opened, several, false, options.transfer);
  out.bytes_read += compared.bytes_read;
  for (const Note& note : compared.findings) {
    if (note.code != Finding::kDifferentCopies) continue;
    if (out.drifted.empty()) out.drift = note.message;
    if (out.drifted.empty() || out.drifted.back() != note.tensor)
      out.drifted.push_back(note.tensor);
  }
}

}  // namespace

BlockChoice choose_blocks(std::string_view name, std::int64_t numel, std::uint64_t every) {
  BlockChoice choice;
  choice.blocks = (numel + kAuditBlock - 1) / kAuditBlock;
  if (every <= 1 || choice.blocks <= kWholeUpTo) return choice;
  // Two blocks at least.
  choice.every = std::min(static_cast<std::int64_t>(every), choice.blocks / 2);
  choice.first =
      static_cast<std::int64_t>(mix_key(0, name) % static_cast<std::uint64_t>(choice.every));
  return choice;
}

std::int64_t chosen_numel(const BlockChoice& choice, std::int64_t numel) {
  if (choice.every == 1) return numel;
  const std::int64_t chosen = choice.chosen();
  const bool has_last = choice.first + (chosen - 1) * choice.every == choice.blocks - 1;
  const std::int64_t short_by = choice.blocks * kAuditBlock - numel;
  return chosen * kAuditBlock - (has_last ? short_by : 0);
}

DeepNumbers scan_part(FileSystem& fs, const AuditPart& part, const AuditOptions& options,
                      const DeepPlan& plan, AuditNames& names) {
  OpenedCheckpoint opened = open_checkpoint(fs, part.path, part_options(part, options));
  std::vector<OptimState> optimizers;
  std::vector<TensorFact> facts = tensor_facts(opened, part.prefix, names, &optimizers);
  std::erase_if(facts, [&](const TensorFact& fact) { return !fact.measured || !plan.wants(fact); });
  DeepNumbers out;
  std::vector<std::uint32_t> indices;
  for (const TensorFact& fact : facts) indices.push_back(fact.index);
  std::ranges::sort(indices);
  opened.locate(indices, read_options(options.transfer));
  const TransferOptions& transfer = options.transfer;
  TransferOptions staged = looking(transfer);
  staged.memory_limit_bytes = transfer.memory_limit_bytes / 4;
  const TensorReader reader(opened.manifest, *opened.directory, staged);
  const int threads = std::max(1, transfer.threads);
  const std::int64_t room = block_elements(transfer.memory_limit_bytes / 2, threads, 1);
  const std::int64_t piece =
      room >= kAuditBlock ? room / kAuditBlock * kAuditBlock : room / kStatStrip * kStatStrip;
  std::vector<DeepScratch> scratch(static_cast<std::size_t>(threads));
  out.tensors.resize(facts.size());
  parallel_for(facts.size(), threads, [&](std::size_t i, int worker) {
    const std::string name = names.name(facts[i].id);
    out.tensors[i] = in_tensor(name, [&] {
      return DeepTensorScan(opened.manifest, reader, plan, piece,
                            scratch[static_cast<std::size_t>(worker)], transfer.cancel)
          .scan(facts[i], name);
    });
    if (transfer.progress)
      transfer.progress->done_bytes +=
          static_cast<std::uint64_t>(out.tensors[i].count) * facts[i].element_bytes;
  });
  for (std::size_t i = 0; i < facts.size(); ++i)
    out.bytes_read += static_cast<std::uint64_t>(out.tensors[i].count) * facts[i].element_bytes;
  if (plan.replicas) {
    compare_replicas(opened, facts, options, out);
    for (const OptimState& optim : optimizers) {
      const OddSteps odd = find_odd_steps(optim, read_steps(opened, optim, transfer));
      if (out.odd_steps == 0) out.odd_step = odd.first;
      out.odd_steps += odd.count;
    }
  }
  opened.check_archives();
  return out;
}

}  // namespace tessera
