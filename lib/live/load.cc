#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/live/load.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>
#include <tessera/state/state_values.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <span>

#include "lib/base/append.h"
#include "lib/base/sort_unique.h"
#include "lib/live/callbacks.h"
#include "lib/live/contents_digest.h"
#include "lib/live/live_numbers.h"
#include "lib/live/load_match.h"
#include "lib/live/load_targets.h"
#include "lib/live/prepared_save.h"
#include "lib/live/record_proof.h"
#include "lib/live/same_call.h"
#include "lib/live/shared_memory.h"
#include "lib/ops/open/flat_options.h"
#include "lib/ops/open/sealed_directory.h"
#include "lib/ops/open/unsure_names.h"
#include "lib/state/live/wire.h"

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
    meet([&] {
      SaveMemory::settle_of(ranks_);
      open();
      if (state_.materialise) state_.materialise(state_, source_.manifest);
      if (policy_.optimizer != PartPolicy::kSkip) add_notes(std::exchange(state_.notes, {}));
      check_live_tensors(state_, true);
      asked = encode_asked(state_, ranks_.rank());
    });
    agree_on_policy();
    match_all(std::move(asked));
    ranks_.together([&] { plan(); });
    choose_safety();
    read();
    ranks_.together([&] { finish(); });
    return std::move(result_);
  }

 private:
  /// ranks_.together(), as the first meeting.
  void meet(const std::function<void()>& f) {
    Status mine;
    try {
      f();
    } catch (...) {
      mine = current_exception_status();
    }
    const auto all = ranks_.all_gather(WireWriter().text("load").number(mine.ok()).finish());
    check_same_call(all);
    const bool any_failed = std::ranges::any_of(all, [](const auto& bytes) {
      WireReader in(bytes);
      in.text();
      return in.number() == 0;
    });
    if (any_failed) ranks_.agree(mine);
  }

  void open() {
    if (policy_.file_system == nullptr) own_files_ = make_posix_file_system();
    FileSystem& fs = policy_.file_system != nullptr ? *policy_.file_system : *own_files_;
    OpenOptions options;
    options.from = policy_.from;
    options.selection.root = policy_.root;
    options.read = locating_;
    options.check_seal = reading_.check_crc;
    source_ = open_checkpoint(fs, path_, options);
    if (policy_.verify) require_sound_seal();
    if (ranks_.size() > 1) remember_contents(fs);
    expand_state_values(source_.manifest);
    name_optimizers_by_fqn();
    if (!policy_.names.empty()) apply_renames(source_.manifest, policy_.names);
    result_.notes.insert(result_.notes.begin(), source_.notes.begin(), source_.notes.end());
    append(result_.notes, source_.manifest.notes);
    result_.format = source_.driver->id();
    result_.path = source_.display;
  }

  /// Without its seal, what has no checksum of its own (the metadata) is held against nothing.
  void require_sound_seal() const {
    for (const Note& note : source_.notes)
      if (note.code == Finding::kNoSeal)
        in_file(note.file, [&] { fail(Code::kCorrupt, note.message); });
  }

  /// What this rank has opened, to be compared with what others have: names of paths prove nothing
  /// (other working directories, disks of nodes, a pointer that moves).
  void remember_contents(const FileSystem& fs) {
    contents_ = hex(contents_digest(source_));
    place_ = source_.path;
    try {
      place_ = fs.canonical(source_.path);
    } catch (const Error&) {  // only a message is poorer
    }
  }

  /// Live optimizers name parameters by FQN, unless they themselves use ids.
  void name_optimizers_by_fqn() {
    if (policy_.optimizer == PartPolicy::kSkip) return;
    const auto live = find_roles(state_.dict()).optimizers;
    if (!live.empty())
      require_sure_names(source_.manifest,
                         "say so in flat_layout.json beside the files, or skip the optimizer "
                         "(PartPolicy::kSkip)");
    for (const OptimizerRoot& root : live)
      if (root.dialect == OptimDialect::kById) return;
    const auto stored = find_roles(source_.manifest.state).optimizers;
    const auto has = [&](OptimDialect dialect) {
      return std::ranges::any_of(stored, [&](const auto& root) { return root.dialect == dialect; });
    };
    if (has(OptimDialect::kFlat)) locate_flattened_options(source_, locating_);
    if (has(OptimDialect::kFlat)) add_notes(group_optimizers(source_.manifest));
    if (has(OptimDialect::kById) || has(OptimDialect::kLeafFirst))
      add_notes(rekey_optimizers(source_.manifest, OptimKeys::kFqn));
  }
  void add_notes(const std::vector<Note>& notes) { append(result_.notes, notes); }

  /// What another rank does otherwise would leave a state that no call asked for.
  void agree_on_policy() {
    std::vector<std::pair<const char*, std::string>> mine = {
        {"LoadPolicy::from", policy_.from},
        {"LoadPolicy::root", policy_.root},
        {"LoadPolicy::names", text_of(policy_.names)},
        {"LoadPolicy::model", text_of(policy_.model)},
        {"LoadPolicy::optimizer", text_of(policy_.optimizer)},
        {"LoadPolicy::other", text_of(policy_.other)},
        {"LoadPolicy::allow_mismatched", text_of(policy_.allow_mismatched)},
        {"LoadPolicy::allow_cast", text_of(policy_.allow_cast)},
        {"LoadPolicy::verify", text_of(policy_.verify)},
        {"LoadPolicy::check_crc", text_of(policy_.check_crc)},
        {"LoadPolicy::safety", text_of(policy_.safety)}};
    WireWriter message;
    for (const auto& [name, value] : mine) message.text(value);
    message.text(contents_).text(place_);
    const auto all = ranks_.all_gather(message.finish());
    ranks_.together([&] {
      std::vector<WireReader> readers(all.begin(), all.end());
      for (const auto& [name, value] : mine) {
        const std::string first = readers[0].text();
        for (std::size_t r = 1; r < readers.size(); ++r)
          if (const std::string theirs = readers[r].text(); theirs != first)
            fail(Code::kInvalidArgument,
                 fmt::format("ranks ask for different {}: rank 0 for \"{}\", rank {} for \"{}\"",
                             name, printable(first), r, printable(theirs)),
                 "give every rank the same policy");
      }
      compare_contents(readers);
    });
  }
  static void compare_contents(std::span<WireReader> readers) {
    const std::string contents = readers[0].text();
    const std::string place = readers[0].text();
    for (std::size_t r = 1; r < readers.size(); ++r) {
      const bool same = readers[r].text() == contents;
      const std::string theirs = readers[r].text();
      if (!same)
        fail(Code::kInvalidArgument,
             fmt::format("ranks see different checkpoints: rank 0 \"{}\", rank {} \"{}\"",
                         printable(place), r, printable(theirs)),
             "give every rank the same files; where a pointer such as `latest` moves while jobs "
             "load, name the checkpoint itself");
    }
  }
  static std::string text_of(bool value) { return value ? "true" : "false"; }
  static std::string text_of(PartPolicy policy) {
    constexpr const char* kNames[] = {"kStrict", "kAllowMissing", "kAllowUnexpected", "kAllowBoth",
                                      "kSkip"};
    return kNames[static_cast<std::size_t>(policy)];
  }
  static std::string text_of(LoadSafety safety) {
    constexpr const char* kNames[] = {"kAside", "kReadTwice", "kInPlace"};
    return kNames[static_cast<std::size_t>(safety)];
  }
  static std::string text_of(const NameRules& names) {
    std::string out = names.strip_prefix;
    for (const auto* list : {&names.map, &names.renames})
      for (const auto& [from, to] : *list) out += fmt::format("; {} to {}", from, to);
    return out;
  }

  /// What all ranks ask for is large together: gone before tensors are read.
  void match_all(Bytes mine) {
    const auto all = ranks_.all_gather(std::exchange(mine, {}));
    ranks_.together([&] {
      const AskedNames asked = join_asked(all);
      if (policy_.optimizer != PartPolicy::kSkip) check_same_optimizers(asked, ranks_.size());
      matches_ = match_state(state_, source_.manifest, asked, ranks_.rank(), policy_, result_);
      judge_match(state_, source_.manifest, asked, policy_, result_);
    });
  }

  const StateEntry& live_entry(const Match& match) const {
    return state_.dict().entries[match.live];
  }
  const Value& stored_value(const Match& match) const {
    return source_.manifest.state.entries[match.stored].value;
  }
  const LiveTensor& live_tensor(const Match& match) const {
    return state_.tensors()[live_entry(match).value.tensor_index()];
  }

  void plan() {
    if (policy_.verify) refuse_shared_memory();
    make_targets();
    scratch_.plan(source_.manifest);
    places_.plan(source_.manifest);
    locate();
    read_small();
  }

  /// Opens the items that this rank reads from, not all of the tensors': numbers whole, tensors as
  /// planned.
  void locate() {
    std::vector<std::uint32_t> tensors;
    std::vector<std::uint64_t> chunks = scratch_.chunks();
    const std::vector<std::uint64_t> more = places_.chunks();
    chunks.insert(chunks.end(), more.begin(), more.end());
    for (const Match& match : matches_)
      if (match.kind != Match::Kind::kTensor && stored_value(match).is_tensor())
        tensors.push_back(stored_value(match).tensor_index());
    for (const std::uint32_t index : tensors) {
      const StoredTensor& tensor = source_.manifest.tensors[index];
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        chunks.push_back(tensor.first_chunk + c);
    }
    for (const LoadTargets* part : {&scratch_, &places_})
      for (const MemoryTarget& target : part->targets()) tensors.push_back(target.tensor);
    sort_unique(tensors);
    sort_unique(chunks);
    locating_.chunks = std::move(chunks);
    source_.locate(tensors, locating_);
  }

  /// Under verify, what landed is compared with what was stored: where two targets share memory,
  /// only the last one's is there.
  void refuse_shared_memory() const {
    std::vector<NamedPiece> pieces;
    for (const Match& match : matches_) {
      if (match.kind == Match::Kind::kValue) continue;
      const LiveTensor& live = live_tensor(match);
      for (const LivePiece& piece : live.pieces)
        if (piece.chunk.numel() > 0)
          pieces.push_back({live_entry(match).name, &piece, live.spec.dtype});
    }
    const auto shared = first_shared(pieces);
    if (!shared) return;
    in_tensor(shared->first, [&] {
      fail(Code::kInvalidArgument,
           shared->first == shared->second
               ? std::string("two pieces of it share memory")
               : fmt::format("it shares memory with \"{}\"", printable(shared->second)),
           "give each its own memory, or name tied tensors once");
    });
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
        (live.scratch ? scratch_ : places_)
            .add({index, piece.chunk, static_cast<std::byte*>(piece.data), piece.strides},
                 live_entry(match).name);
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

  /// Aside first, where that fits on every rank.
  void choose_safety() {
    bool fits = true;
    for (const auto& bytes : ranks_.all_gather(
             WireWriter().number(places_.bytes()).number(policy_.stage_limit_bytes).finish())) {
      WireReader in(bytes);
      const std::uint64_t theirs = in.number();
      fits = fits && theirs <= in.number();
    }
    const bool aside = policy_.safety == LoadSafety::kAside;
    result_.safety = aside && !fits ? LoadSafety::kReadTwice : policy_.safety;
    ranks_.together([&] {
      if (result_.safety == LoadSafety::kAside) places_.take_room();
    });
  }

  /// What may fail before any memory of the job changes, does; then it changes.
  void read() {
    const LoadSource source{source_.manifest, *source_.directory, reading_};
    ranks_.together([&] {
      result_.bytes_read += scratch_.read(source, policy_.verify);
      land_numbers(/*scratch=*/true);
      if (result_.safety == LoadSafety::kAside)
        result_.bytes_read += places_.read(source, policy_.verify);
      else if (result_.safety == LoadSafety::kReadTwice)
        result_.bytes_read += places_.prove(source);
    });
    const std::vector<RecordToProve> records = share_of_parts();
    ranks_.together([&] {
      prove(records);
      check_archives();
    });
    ranks_.together([&] {  // where all have come, since it may talk to them
      if (state_.check_loaded) state_.check_loaded(filled());
      if (policy_.cancel != nullptr) policy_.cancel->check();  // nothing of the job's has changed
    });
    if (result_.safety != LoadSafety::kAside) read_in_place();
  }

  /// This rank's share of the records that ranks have read parts of. (Not reached if a rank failed
  /// before.)
  std::vector<RecordToProve> share_of_parts() {
    std::vector<RecordToProve> records = scratch_.take_unproved();
    std::ranges::move(places_.take_unproved(), std::back_inserter(records));
    return share_of_records(std::move(records), source_.manifest, ranks_);
  }
  void prove(std::span<const RecordToProve> records) {
    result_.bytes_read += prove_records(source_, records, locating_, reading_);
  }

  /// Those that this rank reads tensors from, which may lie on a disk of its own; of those that
  /// every rank has read values from, and under verify of all files, its share. (All ranks have the
  /// same seal, or none, and the same values.)
  void check_archives() const {
    if (source_.sealed == nullptr) return;
    source_.sealed->check(source_.sealed->archives());
    source_.sealed->check(share_of(source_.sealed->archives_elsewhere()));
    if (!policy_.verify) return;
    std::vector<std::string> all;
    for (const SealedFile& file : source_.seal->files) all.push_back(file.path);
    source_.sealed->check(share_of(all), /*whole=*/true);
  }
  std::vector<std::string> share_of(const std::vector<std::string>& paths) const {
    std::vector<std::string> share;
    for (auto i = static_cast<std::size_t>(ranks_.rank()); i < paths.size();
         i += static_cast<std::size_t>(ranks_.size()))
      share.push_back(paths[i]);
    return share;
  }

  /// In one go, with no rank to wait for: the state is the old one or the new one, never a part.
  void finish() {
    if (result_.safety == LoadSafety::kAside) places_.land(policy_.verify);
    land_numbers(/*scratch=*/false);
    // Thrown only when the state is whole: it is too late to keep the old one.
    const std::exception_ptr refused = hand_over_values();
    if (state_.after_load) state_.after_load(filled());
    if (refused) std::rethrow_exception(refused);
  }

  void read_in_place() {
    TransferOptions reading = reading_;
    // What is proved lands: half of it would be worse than a load that is cancelled too late.
    if (result_.safety == LoadSafety::kReadTwice) reading.cancel = nullptr;
    const LoadSource source{source_.manifest, *source_.directory, reading};
    try {
      ranks_.together([&] { result_.bytes_read += places_.read(source, policy_.verify); });
      if (result_.safety != LoadSafety::kInPlace) return;  // it is proved
      const std::vector<RecordToProve> records = share_of_parts();
      ranks_.together([&] { prove(records); });
    } catch (const Error& error) {
      Status status = error.status();
      status.message += "; the live state is partly filled";
      status.hint = "load a whole checkpoint before the state is used";
      throw Error(std::move(status));
    }
  }

  void land_numbers(bool scratch) {
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

  /// All of them; the first that is refused is returned.
  std::exception_ptr hand_over_values() {
    std::exception_ptr refused;
    if (!state_.on_value) return refused;
    for (const StateEntry& entry : result_.values) {
      try {
        in_tensor(entry.name, [&] { state_.on_value(entry); });
      } catch (...) {
        if (!refused) refused = std::current_exception();
      }
    }
    return refused;
  }

  const std::string& path_;
  LiveState& state_;
  RankGroup& ranks_;
  const LoadPolicy& policy_;
  TransferOptions reading_;
  ReadOptions locating_;
  std::unique_ptr<FileSystem> own_files_;
  OpenedCheckpoint source_;
  std::string contents_, place_;  // of the source as it was opened; empty for a single rank
  std::vector<Match> matches_;
  LoadTargets scratch_, places_;  // memory of the state's callbacks; of the job
  std::vector<std::pair<Match, Bytes>> numbers_;
  LoadResult result_;
};

}  // namespace

LoadResult load(const std::string& path, LiveState state, RankGroup& ranks,
                const LoadPolicy& policy) {
  NamedCallbacks callbacks(state);
  try {
    return in_operation(fmt::format("load from {}", printable(path)), [&] {
      const auto start = std::chrono::steady_clock::now();
      LoadResult result = Loading(path, state, ranks, policy).run();
      result.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      return result;
    });
  } catch (const Error& error) {
    callbacks.rethrow(error);
  }
}

}  // namespace tessera
