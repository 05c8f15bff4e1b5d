#include "lib/live/prepared_save.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

#include "lib/base/status_bytes.h"
#include "lib/format/value_policy.h"
#include "lib/live/same_call.h"
#include "lib/ops/open/value_budget.h"
#include "lib/state/live/wire.h"

namespace tessera {

namespace {

/// What every rank says before a save is planned.
struct Opening {
  std::string call;
  Status status;
  std::uint64_t generation = 0;  // of the plan that still fits this rank; 0: none does
  bool has_background = false;   // the group for it
  std::string path;
  std::array<std::string, 4> options;  // as kOptions
  Bytes shared;                        // digest of the shared values

  static constexpr std::array kOptions = {"format", "force", "update_latest", "keep_last"};
  void set_options(const SaveOptions& of) {
    options = {of.format, of.force ? "true" : "false", of.update_latest ? "true" : "false",
               fmt::to_string(of.keep_last)};
  }

  Bytes encode() const {
    const std::vector<std::byte> failure =
        status.ok() ? std::vector<std::byte>() : status_to_bytes(status);
    WireWriter out;
    out.text(call).bytes(failure).number(generation).number(has_background ? 1 : 0).text(path);
    for (const std::string& option : options) out.text(option);
    return out.bytes(shared).finish();
  }
  static Opening decode(ByteView bytes) {
    WireReader in(bytes);
    Opening out;
    out.call = in.text();
    if (const ByteView failure = in.bytes(); !failure.empty())
      out.status = status_from_bytes(failure);
    out.generation = in.number();
    out.has_background = in.number() != 0;
    out.path = in.text();
    for (std::string& option : out.options) option = in.text();
    const ByteView shared = in.bytes();
    out.shared.assign(shared.begin(), shared.end());
    return out;
  }
};

/// Throws the first rank's failure. True when every rank's plan still fits.
bool judge(const std::vector<Opening>& openings) {
  for (std::size_t r = 0; r < openings.size(); ++r) {
    if (openings[r].status.ok()) continue;
    Status first = openings[r].status;
    if (first.context.rank < 0) first.context.rank = static_cast<int>(r);
    throw Error(std::move(first));
  }
  bool same = true;
  for (std::size_t r = 0; r < openings.size(); ++r) {
    if (openings[r].path != openings[0].path)
      fail(Code::kInvalidArgument,
           fmt::format("ranks save to different places: rank 0 to {}, rank {} to {}",
                       printable(openings[0].path), r, printable(openings[r].path)));
    for (std::size_t o = 0; o < Opening::kOptions.size(); ++o)
      if (openings[r].options[o] != openings[0].options[o])
        fail(Code::kInvalidArgument,
             fmt::format(
                 "ranks save with different SaveOptions::{}: rank 0 with {}, rank {} with {}",
                 Opening::kOptions[o], printable(openings[0].options[o]), r,
                 printable(openings[r].options[o])),
             "give every rank the same options");
    same = same && openings[r].generation != 0 &&
           openings[r].generation == openings[0].generation &&
           openings[r].shared == openings[0].shared;
  }
  return same;
}

const FormatDriver& target_driver(const std::string& format) {
  const FormatDriver* driver = find_format(format);
  if (driver == nullptr)
    fail(Code::kInvalidArgument, fmt::format("there is no format \"{}\"", printable(format)));
  if (!driver->capabilities().takes_parts)
    fail(Code::kUnsupported, fmt::format("ranks cannot write {} together", format),
         "save as torch-dcp, and convert with ckpt-convert");
  return *driver;
}

/// The values of `state`. Looking at all of a large state's tensors for them takes longer than the
/// rest of planning again: `kept`, where it is not null, was made of the same structure.
StateDict values_of(const LiveState& state, const PreparedSave* kept) {
  StateDict values;
  if (kept != nullptr) {
    for (const KnownValue& known : kept->merged.values)
      values.entries.push_back(state.dict().entries[known.entry]);
  } else {
    std::ranges::copy_if(state.dict().entries, std::back_inserter(values.entries),
                         [](const StateEntry& entry) { return !entry.value.is_tensor(); });
  }
  return values;
}

/// The renderer of a plan for other values; nullptr where they do not fit into it.
std::shared_ptr<const OutputRenderer> renderer_with(const PreparedSave& kept,
                                                    const StateDict& values) {
  std::vector<std::pair<std::uint32_t, Value>> known;
  for (std::size_t v = 0; v < values.entries.size(); ++v)
    known.emplace_back(kept.merged.values[v].merged, values.entries[v].value);
  const auto& renderer = kept.output.renderer;
  return known.empty() ? renderer : renderer->with_values(kept.output, known);
}

/// Keeps of the plan for all ranks what rank `rank` writes. Rank r writes the r-th file; what comes
/// after those (indices, metadata) is rank 0's.
void keep_own_files(PreparedSave& prepared, int rank, int ranks) {
  OutputPlan& output = prepared.output;
  std::vector<OutputFile> files;
  std::vector<Segment> segments;
  for (std::size_t f = 0; f < output.files.size(); ++f) {
    OutputFile file = output.files[f];
    const int owner = f < static_cast<std::size_t>(ranks) ? static_cast<int>(f) : 0;
    prepared.files.push_back({file.path, file.size_bytes, owner});
    prepared.total_bytes += file.size_bytes;
    if (owner != rank) continue;
    const auto first = output.segments.begin() + static_cast<std::ptrdiff_t>(file.first_segment);
    file.first_segment = segments.size();
    segments.insert(segments.end(), first, first + static_cast<std::ptrdiff_t>(file.segment_count));
    files.push_back(std::move(file));
  }
  output.files = std::move(files);
  output.segments = std::move(segments);
}

/// `messages[r]`: rank r's description of its state. Freed once merged, before the plan is made.
std::unique_ptr<PreparedSave> make_prepared(std::vector<Bytes> messages, RankGroup& ranks,
                                            const LiveState& state, std::span<void* const> memory,
                                            const SaveOptions& options) {
  auto prepared = std::make_unique<PreparedSave>();
  prepared->format = options.format;
  {
    const std::vector<LiveDescription> all(messages.begin(), messages.end());
    const ByteView own = all[static_cast<std::size_t>(ranks.rank())].structure;
    prepared->structure.assign(own.begin(), own.end());
    prepared->merged = merge_states(all, ranks.rank(), state);
  }
  messages = {};
  prepared->fingerprint = sha256(prepared->structure);
  bind_sources(prepared->merged, state, memory);
  std::vector<Note> none_left_out;
  keep_out_danger(prepared->merged.manifest, KeepPolicy::kDefault, none_left_out);
  TargetRequest request;
  request.world_size = ranks.size();
  request.parts = std::move(prepared->merged.parts);
  prepared->output = target_driver(options.format).output_plan(prepared->merged.manifest, request);
  request = {};
  prepared->output.check(prepared->merged.manifest);
  prepared->balance.open(prepared->merged.manifest);
  prepared->balance.close(prepared->merged.manifest, prepared->output);
  keep_own_files(*prepared, ranks.rank(), ranks.size());
  prepared->output.check(prepared->merged.manifest);
  prepared->plan.emplace(prepared->merged.manifest, prepared->output);
  return prepared;
}

}  // namespace

SaveMemory::~SaveMemory() {
  const Status lost = settle();
  if (!lost.ok()) print_unthrown(lost);
}

void print_unthrown(const Status& status) {
  std::fprintf(stderr, "tessera: a background save failed, and no later call reported it: %s\n",
               status.to_string().c_str());
}

void PendingSave::Work::ask() {
  if (released_ || !changed || !too_early_.empty()) return;
  try {
    too_early_ = changed();
  } catch (const std::exception& error) {
    too_early_ = error.what();
  } catch (...) {
    too_early_ = "LiveState::changed";
  }
}

void PendingSave::Work::finish_snapshot() {
  std::unique_lock lock(mutex_);
  ask();
  condition_.wait(lock, [&] { return copied_; });
  released_ = true;
}

void PendingSave::Work::copied() {
  const std::lock_guard lock(mutex_);
  copied_ = true;
  condition_.notify_all();
}

void PendingSave::Work::check_unchanged() {
  const std::lock_guard lock(mutex_);
  ask();
  if (too_early_.empty()) return;
  in_tensor(too_early_, [] {
    fail(Code::kInvalidArgument, "its memory changed before the lazy snapshot was finished",
         "call PendingSave::finish_snapshot() before optimizer.step()");
  });
}

SaveMemory& SaveMemory::of(RankGroup& ranks) {
  if (!ranks.kept()) ranks.kept() = std::make_shared<SaveMemory>();
  return *static_cast<SaveMemory*>(ranks.kept().get());
}

void SaveMemory::settle_of(RankGroup& ranks) {
  if (!ranks.kept()) return;
  Status status = of(ranks).settle();
  if (!status.ok()) throw Error(std::move(status));
}

int SaveMemory::cpus() {
  if (known_cpus == 0) known_cpus = available_cpus();
  return known_cpus;
}

Status SaveMemory::settle() {
  if (!in_flight) return {};
  const std::shared_ptr<PendingSave::Work> work = std::move(in_flight);
  in_flight.reset();
  if (!work->is_of_this_process()) {  // its threads are not here: nothing of it can end
    new std::shared_ptr<PendingSave::Work>(work);
    background.release();
    return {};
  }
  try {
    static_cast<void>(work->result.get());
  } catch (...) {
    background.reset();  // a rank may have left it
    if (work->thrown.exchange(true)) return {};
    Status status = current_exception_status();
    if (status.context.operation.empty()) status.context.operation = "the save before";
    return status;
  }
  return {};
}

void prepare_save(std::string_view call, const std::string& path, const LiveState& state,
                  RankGroup& ranks, const SaveOptions& options, const Status& mine,
                  SaveMemory& memory, SaveReport& report) {
  Opening opening;
  opening.call = call;
  opening.status = mine;
  opening.path = path;
  opening.set_options(options);
  if (memory.background && !memory.background->usable()) memory.background.reset();
  opening.has_background = memory.background != nullptr;
  std::shared_ptr<const OutputRenderer> renderer;
  LiveStructure anew;
  const LiveStructure* structure = nullptr;
  Bytes agreed;
  if (mine.ok()) {
    try {
      PreparedSave* kept = memory.prepared.get();
      agreed = agreements_of(state, memory.thrown);  // which may change the state
      structure = structure_of(state, anew);
      // Of states that fit, check_live_tensors() and check_names() say the same. (Compared as
      // texts: in words.)
      const bool fits = kept != nullptr && kept->format == options.format && structure != nullptr &&
                        as_text(structure->bytes) == as_text(kept->structure);
      if (!fits) check_live_tensors(state, false);
      const StateDict values = values_of(state, fits ? kept : nullptr);
      require_printable(values);
      const Sha256Digest shared = digest_of_shared(state, values, agreed);
      const ByteView digest = std::as_bytes(std::span(shared));
      opening.shared.assign(digest.begin(), digest.end());
      if (fits) {
        renderer = renderer_with(*kept, values);
        if (renderer) opening.generation = memory.generation;
      } else {
        check_names(state);
      }
    } catch (...) {
      opening.status = current_exception_status();
    }
  }
  const std::vector<std::vector<std::byte>> openings_sent = ranks.all_gather(opening.encode());
  check_same_call(openings_sent);
  std::vector<Opening> openings;
  for (const auto& bytes : openings_sent) openings.push_back(Opening::decode(bytes));
  // A rank may have left it after an error that no other has seen: all make a new one together.
  if (!std::ranges::all_of(openings, &Opening::has_background)) memory.background.reset();
  report.plan_reused = judge(openings);
  if (report.plan_reused) {
    memory.prepared->output.renderer = std::move(renderer);
    bind_sources(memory.prepared->merged, state, structure->memory);
    return;
  }
  memory.prepared.reset();
  std::vector<Bytes> messages;
  {
    Bytes message;
    ranks.together([&] { message = describe(state, structure->bytes, agreed); });
    report.plan_bytes = message.size();
    messages = ranks.all_gather(message);
  }
  ranks.together([&] {
    memory.prepared = make_prepared(std::move(messages), ranks, state, structure->memory, options);
  });
  ++memory.generation;
}

}  // namespace tessera
