#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/fill.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>
#include <tessera/state/state_values.h>
#include <tessera/storage/aligned_buffer.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>

#include "lib/live/live_numbers.h"
#include "lib/live/live_wire.h"
#include "lib/live/load_match.h"
#include "lib/live/untouched.h"

namespace tessera {

namespace {

class Loading {
 public:
  Loading(const std::string& path, LiveState& state, RankGroup& ranks, const LoadPolicy& policy)
      : path_(path), state_(state), ranks_(ranks), policy_(policy) {
    reading_.memory_limit_bytes = policy.memory_limit_bytes;
    reading_.threads = std::max(1, policy.threads);
    reading_.check_crc = policy.check_crc || policy.verify;
    reading_.progress = policy.progress;
    reading_.cancel = policy.cancel;
    locating_.memory_limit_bytes = policy.memory_limit_bytes;
    locating_.threads = reading_.threads;
    locating_.check_crc = reading_.check_crc;
  }

  LoadResult run() {
    Bytes asked;
    ranks_.together([&] {
      open();
      if (state_.materialise) state_.materialise(state_, source_.manifest);
      check_live_tensors(state_, true);
      asked = encode_asked(state_, ranks_.rank());
    });
    const auto all = ranks_.all_gather(asked);
    ranks_.together([&] { match(join_asked(all)); });
    ranks_.together([&] { plan(); });
    choose_stage();
    read();
    ranks_.together([&] { hand_over(); });
    result_.bytes_read += moved_.bytes_read;
    return std::move(result_);
  }

 private:
  void open() {
    if (policy_.file_system == nullptr) own_files_ = make_posix_file_system();
    FileSystem& fs = policy_.file_system != nullptr ? *policy_.file_system : *own_files_;
    OpenOptions options;
    options.from = policy_.from;
    options.selection.root = policy_.root;
    options.read = locating_;
    source_ = open_checkpoint(fs, path_, options);
    expand_state_values(source_.manifest);
    name_optimizers_by_fqn();
    if (!policy_.names.empty()) apply_renames(source_.manifest, policy_.names);
    result_.notes.insert(result_.notes.begin(), source_.notes.begin(), source_.notes.end());
    result_.notes.insert(result_.notes.end(), source_.manifest.notes.begin(),
                         source_.manifest.notes.end());
    result_.format = source_.driver->id();
    result_.path = source_.display;
  }

  /// Live optimizers name parameters by FQN, unless they themselves use ids.
  void name_optimizers_by_fqn() {
    if (policy_.optimizer == PartPolicy::kSkip) return;
    for (const OptimizerRoot& root : find_roles(state_.dict).optimizers)
      if (root.dialect == OptimDialect::kById) return;
    const auto stored = find_roles(source_.manifest.state).optimizers;
    const auto has = [&](OptimDialect dialect) {
      return std::ranges::any_of(stored, [&](const auto& root) { return root.dialect == dialect; });
    };
    if (has(OptimDialect::kFlat)) add_notes(group_optimizers(source_.manifest));
    if (has(OptimDialect::kById) || has(OptimDialect::kLeafFirst))
      add_notes(rekey_optimizers(source_.manifest, OptimKeys::kFqn));
  }
  void add_notes(const std::vector<Note>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  void match(const AskedNames& asked) {
    matches_ = match_state(state_, source_.manifest, asked, ranks_.rank(), policy_, result_);
    judge_match(state_, source_.manifest, asked, policy_, result_);
  }

  const StateEntry& live_entry(const Match& match) const { return state_.dict.entries[match.live]; }
  const Value& stored_value(const Match& match) const {
    return source_.manifest.state.entries[match.stored].value;
  }
  LiveTensor& live_tensor(const Match& match) {
    return state_.tensors[live_entry(match).value.tensor_index()];
  }

  void plan() {
    make_targets();
    output_ = memory_plan(source_.manifest, targets_);
    output_.check(source_.manifest);
    plan_.emplace(source_.manifest, output_);
    locate();
    read_small();
    if (policy_.verify) prove_checksums();
  }

  /// Opens the items that this rank reads from, not all of the tensors': numbers whole, tensors as
  /// planned, and what it proves for all ranks.
  void locate() {
    if (policy_.verify) to_prove_ = share_of_targets();
    std::vector<std::uint32_t> tensors = to_prove_;
    std::vector<std::uint64_t> chunks = plan_->chosen_chunks();
    for (const Match& match : matches_)
      if (match.kind != Match::Kind::kTensor && stored_value(match).is_tensor())
        tensors.push_back(stored_value(match).tensor_index());
    for (const std::uint32_t index : tensors) {
      const StoredTensor& tensor = source_.manifest.tensors[index];
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        chunks.push_back(tensor.first_chunk + c);
    }
    for (const MemoryTarget& target : targets_) tensors.push_back(target.tensor);
    sort_unique(tensors);
    sort_unique(chunks);
    locating_.chunks = std::move(chunks);
    source_.locate(tensors, locating_);
  }

  template <class Numbers>
  static void sort_unique(Numbers& numbers) {
    std::ranges::sort(numbers);
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  }

  void make_targets() {
    for (const Match& match : matches_) {
      if (match.kind != Match::Kind::kTensor) continue;
      const std::uint32_t index = stored_value(match).tensor_index();
      StoredTensor& stored = source_.manifest.tensors[index];
      const LiveTensor& live = live_tensor(match);
      if (stored.spec.dtype != live.spec.dtype) {
        stored.cast_from = stored.stored_dtype();
        stored.spec.dtype = live.spec.dtype;
      }
      for (const LivePiece& piece : live.pieces) {
        if (piece.chunk.numel() == 0) continue;
        targets_.push_back(
            {index, piece.chunk, static_cast<std::byte*>(piece.data), piece.strides});
        target_names_.push_back(live_entry(match).name);
        is_scratch_.push_back(live.scratch);
      }
    }
  }

  /// Single numbers: steps that are values on one side and tensors on the other. Read before any
  /// byte lands, since they may not fit.
  void read_small() {
    const TensorReader reader(source_.manifest, *source_.directory, reading_);
    for (const Match& match : matches_) {
      if (match.kind == Match::Kind::kTensor) continue;
      in_tensor(live_entry(match).name, [&] {
        const Value& stored = stored_value(match);
        const bool is_tensor = stored.is_tensor();
        const Value value =
            is_tensor ? read_number(reader, source_.manifest, stored.tensor_index()) : stored;
        if (match.kind == Match::Kind::kNumber) {
          // A float tensor is rounded as any cast is; a counter must not be.
          const bool exact = !is_tensor || !value.is_number() || value.is_int();
          numbers_.emplace_back(match, number_bytes(value, live_tensor(match).spec.dtype, exact));
          return;
        }
        result_.values.push_back({live_entry(match).name, live_entry(match).path, value});
        if (state_.check_value) state_.check_value(result_.values.back());
      });
    }
  }

  /// Every tensor that is asked for falls to one rank.
  std::vector<std::uint32_t> share_of_targets() const {
    std::vector<std::uint32_t> mine;
    for (const MemoryTarget& target : targets_)
      if (target.tensor % static_cast<std::uint32_t>(ranks_.size()) ==
          static_cast<std::uint32_t>(ranks_.rank()))
        mine.push_back(target.tensor);
    sort_unique(mine);
    return mine;
  }

  /// Reads this rank's share of the tensors once more, whole.
  void prove_checksums() {
    TransferOptions quiet = reading_;
    quiet.progress = nullptr;
    const TensorReader reader(source_.manifest, *source_.directory, quiet);
    reader.stream(to_prove_, [](const TensorReader::Block&) {});
  }

  /// Aside first, where that fits on every rank.
  void choose_stage() {
    const std::uint64_t mine = plan_->tensor_bytes();
    bool fits = policy_.stage_limit_bytes > 0;
    for (const auto& bytes :
         ranks_.all_gather(WireWriter().number(mine).number(policy_.stage_limit_bytes).finish())) {
      WireReader in(bytes);
      const std::uint64_t theirs = in.number();
      fits = fits && theirs <= in.number();
    }
    result_.staged = fits;
    if (!fits) return;
    std::uint64_t total = 0;
    for (const Segment& segment : output_.segments) total += aligned(segment.length);
    ranks_.together([&] { aside_.reserve(total); });
    staged_ = targets_;
    std::byte* to = aside_.data();
    for (std::size_t t = 0; t < staged_.size(); ++t) {
      staged_[t].data = to;
      staged_[t].strides.clear();
      to += aligned(output_.segments[t].length);
    }
  }
  static std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

  void read() {
    const std::span<const MemoryTarget> targets = result_.staged ? staged_ : targets_;
    try {
      ranks_.together([&] {
        if (policy_.verify) fill_canary(source_.manifest, targets, kFirstCanary);
        moved_ = fill(source_.manifest, *source_.directory, output_, *plan_, targets, reading_);
        if (policy_.verify) prove_touched(targets);
        land(/*scratch=*/true);
        if (state_.check_loaded) state_.check_loaded(filled());
      });
    } catch (const Error& error) {
      if (result_.staged) throw;
      Status status = error.status();
      status.message += "; the live state is partly filled";
      status.hint = "load a whole checkpoint before the state is used";
      throw Error(std::move(status));
    }
    land(/*scratch=*/false);
    aside_ = AlignedBuffer();
  }

  /// Copies what was read aside to its place, and single numbers.
  void land(bool scratch) {
    for (std::size_t t = 0; t < staged_.size(); ++t)
      if (is_scratch_[t] == scratch)
        copy_to_target(source_.manifest, staged_[t].data, targets_[t]);
    for (const auto& [match, bytes] : numbers_) {
      const LiveTensor& tensor = live_tensor(match);
      if (tensor.scratch != scratch) continue;
      for (const LivePiece& piece : tensor.pieces)
        if (piece.chunk.numel() > 0) std::ranges::copy(bytes, static_cast<std::byte*>(piece.data));
    }
  }

  /// Names of the tensors that this load fills.
  std::vector<std::string> filled() const {
    std::vector<std::string> names;
    for (const Match& match : matches_)
      if (match.kind != Match::Kind::kValue) names.push_back(live_entry(match).name);
    return names;
  }

  /// Elements that still look like the first canary are read again over another one: what bears the
  /// second then was never written.
  void prove_touched(std::span<const MemoryTarget> targets) {
    std::vector<MemoryTarget> doubtful;
    std::vector<std::vector<std::int64_t>> before;
    std::vector<std::string> names;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      std::vector<std::int64_t> found = canaries(source_.manifest, targets[t], kFirstCanary);
      if (found.empty()) continue;
      doubtful.push_back(targets[t]);
      before.push_back(std::move(found));
      names.push_back(target_names_[t]);
    }
    if (doubtful.empty()) return;
    fill_canary(source_.manifest, doubtful, kSecondCanary);
    const OutputPlan output = memory_plan(source_.manifest, doubtful);
    const Plan plan(source_.manifest, output);
    TransferOptions quiet = reading_;
    quiet.progress = nullptr;
    result_.bytes_read +=
        fill(source_.manifest, *source_.directory, output, plan, doubtful, quiet).bytes_read;
    for (std::size_t d = 0; d < doubtful.size(); ++d) {
      const auto after = canaries(source_.manifest, doubtful[d], kSecondCanary);
      std::vector<std::int64_t> both;
      std::ranges::set_intersection(before[d], after, std::back_inserter(both));
      if (both.empty()) continue;
      in_tensor(names[d], [&] {
        fail(Code::kInternal,
             fmt::format("{} elements of {} were not written by the load, the first is number {}",
                         both.size(), doubtful[d].chunk.to_string(), both[0]));
      });
    }
  }

  void hand_over() {
    if (state_.on_value)
      for (const StateEntry& entry : result_.values)
        in_tensor(entry.name, [&] { state_.on_value(entry); });
    if (state_.after_load) state_.after_load(filled());
  }

  const std::string& path_;
  LiveState& state_;
  RankGroup& ranks_;
  const LoadPolicy& policy_;
  TransferOptions reading_;
  ReadOptions locating_;
  std::unique_ptr<FileSystem> own_files_;
  OpenedCheckpoint source_;
  std::vector<Match> matches_;
  std::vector<MemoryTarget> targets_;
  std::vector<std::string> target_names_;
  std::vector<std::uint32_t> to_prove_;  // under verify
  std::vector<bool> is_scratch_;  // by target
  std::vector<MemoryTarget> staged_;
  AlignedBuffer aside_;
  OutputPlan output_;
  std::optional<Plan> plan_;
  std::vector<std::pair<Match, Bytes>> numbers_;
  TransferResult moved_;
  LoadResult result_;
};

}  // namespace

LoadResult load(const std::string& path, LiveState state, RankGroup& ranks,
                const LoadPolicy& policy) {
  return in_operation(fmt::format("load from {}", path), [&] {
    const auto start = std::chrono::steady_clock::now();
    LoadResult result = Loading(path, state, ranks, policy).run();
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  });
}

}  // namespace tessera
