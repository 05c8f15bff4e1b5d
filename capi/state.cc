// The state of a job in other languages: a tree of values and pieces of memory, saved and loaded in place.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/seal.h>
#include <tessera/state/balance.h>
#include <tessera/state/live_state.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/ranks.h"
#include "capi/support.h"
#include "tools/documents/json_report.h"

struct tessera_state {
  tessera::LiveState live;
};

struct tessera_pending {
  tessera::PendingSave save;
};

namespace tessera::capi {
namespace {

constexpr std::uint64_t kValueBudget = std::uint64_t{1} << 22;

std::vector<std::int64_t> numbers(const std::int64_t* first, std::uint32_t count,
                                  const char* what) {
  if (count > 0) require(first, what);
  return {first, first + count};
}

LivePiece piece_of(const tessera_piece& given, std::uint32_t ndim) {
  LivePiece piece;
  piece.chunk = Chunk::whole_of(Box{numbers(given.origin, ndim, "a piece's origin"),
                                    Shape(numbers(given.extents, ndim, "a piece's extents"))});
  if (given.flat_end >= 0) {
    piece.chunk.flat_begin = given.flat_begin;
    piece.chunk.flat_end = given.flat_end;
  }
  if (given.strides != nullptr) piece.strides = numbers(given.strides, ndim, "strides");
  piece.data = given.data;
  return piece;
}

LiveTensor tensor_of(const tessera_live_tensor& given) {
  require(given.dtype, "a tensor's dtype");
  const auto dtype = dtype_from_torch_name(given.dtype);
  if (!dtype)
    fail(Code::kInvalidArgument, fmt::format("\"{}\" is no dtype", printable(given.dtype)),
         "PyTorch's name, as float32 or bfloat16");
  LiveTensor tensor;
  tensor.spec = {*dtype, Shape(numbers(given.shape, given.ndim, "a tensor's shape"))};
  tensor.replicated = given.replicated != 0;
  tensor.is_parameter = given.is_parameter != 0;
  if (given.piece_count > 0) require(given.pieces, "a tensor's pieces");
  for (std::uint32_t i = 0; i < given.piece_count; ++i)
    tensor.pieces.push_back(piece_of(given.pieces[i], given.ndim));
  return tensor;
}

LiveState state_of(const char* tree, const tessera_live_tensor* tensors, std::size_t count,
                   const char* per_rank) {
  std::vector<LiveTensor> live;
  for (std::size_t i = 0; i < count; ++i) live.push_back(tensor_of(tensors[i]));
  const auto index_of = [&](const std::string& name) {
    std::uint32_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    if (error != std::errc() || end != name.data() + name.size() || index >= count)
      fail(Code::kInvalidArgument,
           fmt::format("tree: \"{}\" is no tensor's number", printable(name)));
    return index;
  };
  const Value parsed = parse_request(tree, "tree", kTaggedJsonDepth);
  LiveState state = LiveState::of(from_tagged_json(parsed, index_of), std::move(live));
  if (per_rank == nullptr) return state;
  const Value names = parse_request(per_rank, "per_rank", 2);
  if (names.kind() != Value::Kind::kList) fail(Code::kInvalidArgument, "per_rank is no list");
  state.edit([&](LiveContents& contents) {
    for (const Value& name : names.as_list()) {
      if (!name.is_string()) fail(Code::kInvalidArgument, "per_rank holds what is no name");
      const bool known = std::ranges::any_of(contents.dict.entries, [&](const StateEntry& entry) {
        return entry.name == name.as_string() && !entry.value.is_tensor();
      });
      if (!known)
        fail(Code::kInvalidArgument,
             fmt::format("per_rank: no value is called \"{}\"", printable(name.as_string())));
      contents.per_rank.insert(name.as_string());
    }
  });
  return state;
}

SaveOptions save_options(const char* options) {
  Request request(options, "options");
  SaveOptions out;
  if (std::string format = request.text("format"); !format.empty()) out.format = format;
  out.force = request.flag("force", false);
  out.update_latest = request.flag("update_latest", false);
  out.keep_last = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(request.size("keep_last", 0), 0xffffffffu));
  out.memory_limit_bytes = request.size("mem_limit", out.memory_limit_bytes);
  out.threads = static_cast<int>(std::clamp<std::uint64_t>(request.size("threads", 1), 1, 1024));
  request.finish();
  return out;
}

std::string report_of(const SaveReport& report) {
  tools::JsonObject out;
  out.add("bytes_written", report.bytes_written);
  out.add("total_bytes", report.total_bytes);
  out.add("seconds", report.seconds);
  out.add("plan_reused", report.plan_reused);
  out.add("plan_bytes", report.plan_bytes);
  out.add("removed", tools::json_list(report.removed));
  out.add("failed_removals", tools::json_list(report.failed_removals));
  out.add("balance", encode_balance(report.balance));
  return tools::json_document(out.take());
}

template <class T, std::size_t kCount>
T one_of(Request& request, std::string_view field,
         const std::array<std::pair<std::string_view, T>, kCount>& words, T otherwise) {
  const std::string word = request.text(field);
  if (word.empty()) return otherwise;
  std::string known;
  for (const auto& [name, value] : words) {
    if (word == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  fail(Code::kInvalidArgument,
       fmt::format("policy: \"{}\": \"{}\" is none of {}", field, printable(word), known));
}

LoadPolicy load_policy(const char* policy) {
  constexpr std::array<std::pair<std::string_view, PartPolicy>, 5> kParts = {
      {{"strict", PartPolicy::kStrict},
       {"allow_missing", PartPolicy::kAllowMissing},
       {"allow_unexpected", PartPolicy::kAllowUnexpected},
       {"allow_both", PartPolicy::kAllowBoth},
       {"skip", PartPolicy::kSkip}}};
  constexpr std::array<std::pair<std::string_view, LoadSafety>, 3> kSafety = {
      {{"aside", LoadSafety::kAside},
       {"read_twice", LoadSafety::kReadTwice},
       {"in_place", LoadSafety::kInPlace}}};
  Request request(policy, "policy");
  LoadPolicy out;
  out.model = one_of(request, "model", kParts, out.model);
  out.optimizer = one_of(request, "optimizer", kParts, out.optimizer);
  out.other = one_of(request, "other", kParts, out.other);
  out.allow_mismatched = request.flag("allow_mismatched", false);
  out.allow_cast = request.flag("allow_cast", true);
  out.from = request.text("from");
  out.root = request.text("root");
  out.verify = request.flag("verify", false);
  out.check_crc = request.flag("check_crc", true);
  out.safety = one_of(request, "safety", kSafety, out.safety);
  out.memory_limit_bytes = request.size("mem_limit", out.memory_limit_bytes);
  out.stage_limit_bytes = request.size("stage_limit", out.stage_limit_bytes);
  out.threads = static_cast<int>(std::clamp<std::uint64_t>(request.size("threads", 1), 1, 1024));
  request.finish();
  return out;
}

Value path_json(const Path& path) {
  ValueList items;
  for (const PathItem& item : path) {
    if (item.kind == PathItem::Kind::kKey)
      items.push_back(tools::json_text(item.key.view()));
    else if (item.kind == PathItem::Kind::kIntKey)
      items.push_back(Value::integer(item.index));
    else
      items.push_back(Value::list({Value::integer(item.index)}));
  }
  return Value::list(std::move(items));
}

/// {"name","path","value"}; with "object" and no value where it has no form as tagged JSON.
Value value_row(const StateEntry& entry) {
  tools::JsonObject row;
  row.add("name", entry.name.view());
  row.add("path", path_json(entry.path));
  ValueBudget budget(kValueBudget);
  const auto no_tensor = [](std::uint32_t) -> std::string {
    fail(Code::kUnsupported, "a tensor inside a value");
  };
  try {
    row.add("value", to_tagged_json(entry.value, no_tensor, budget));
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
    row.add("object", error.status().message);
  }
  return row.take();
}

Value differences(const std::vector<LoadDifference>& rows) {
  return tools::json_map(rows, [](const LoadDifference& each) {
    tools::JsonObject row;
    row.add("name", each.name);
    row.add("expected", each.expected);
    row.add("found", each.found);
    return row.take();
  });
}

std::string report_of(const LoadResult& result) {
  tools::JsonObject out;
  out.add("format", result.format);
  out.add("path", result.path);
  out.add("bytes_read", result.bytes_read);
  out.add("seconds", result.seconds);
  out.add("loaded", tools::json_list(result.loaded));
  out.add("missing", tools::json_list(result.missing));
  out.add("unexpected", tools::json_list(result.unexpected));
  out.add("skipped", tools::json_list(result.skipped));
  out.add("mismatched", differences(result.mismatched));
  out.add("cast", differences(result.cast));
  out.add("notes", tools::json_notes(result.notes));
  out.add("values", tools::json_map(result.values, value_row));
  return tools::json_document(out.take());
}

/// Saves or loads, watched: `work` does it with `request`, which reports to `watch` from then on.
template <class Request, class Work>
void run_reported(const tessera_watch* watch, Request request, char** report, Work&& work) {
  Progress progress;
  CancelToken cancel;
  request.progress = &progress;
  request.cancel = &cancel;
  std::string text;
  run_watched(watch, progress, cancel, [&] { text = report_of(work(request)); });
  *report = text_for_caller(text);
}

void require_call(const void* path, const void* state, const void* ranks, const void* out) {
  require(path, "path");
  require(state, "state");
  require(ranks, "ranks");
  require(out, "the out parameter");
}

}  // namespace
}  // namespace tessera::capi

namespace capi = tessera::capi;

tessera_error tessera_state_new(const char* tree, const tessera_live_tensor* tensors, size_t count,
                                const char* per_rank, tessera_state** state) {
  return capi::guarded([&] {
    capi::require(tree, "tree");
    capi::require(state, "state");
    if (count > 0) capi::require(tensors, "tensors");
    *state = new tessera_state{capi::state_of(tree, tensors, count, per_rank)};
  });
}

void tessera_state_free(tessera_state* state) { delete state; }

tessera_error tessera_save(const char* path, const tessera_state* state, tessera_ranks* ranks,
                           const char* options, const tessera_watch* watch, char** report) {
  return capi::guarded([&] {
    capi::require_call(path, state, ranks, report);
    capi::run_reported(watch, capi::save_options(options), report,
                       [&](const tessera::SaveOptions& request) {
                         return tessera::save(path, state->live, *ranks->group, request);
                       });
  });
}

tessera_error tessera_save_async(const char* path, const tessera_state* state, tessera_ranks* ranks,
                                 const char* options, tessera_pending** pending) {
  return capi::guarded([&] {
    capi::require_call(path, state, ranks, pending);
    *pending = new tessera_pending{
        tessera::save_async(path, state->live, *ranks->group, capi::save_options(options))};
  });
}

int32_t tessera_pending_done(const tessera_pending* pending) {
  return pending != nullptr && pending->save.done();
}

tessera_error tessera_pending_wait(tessera_pending* pending, char** report) {
  return capi::guarded([&] {
    capi::require(pending, "pending");
    capi::require(report, "report");
    *report = capi::text_for_caller(capi::report_of(pending->save.wait()));
  });
}

void tessera_pending_free(tessera_pending* pending) { delete pending; }

tessera_error tessera_load(const char* path, const tessera_state* state, tessera_ranks* ranks,
                           const char* policy, const tessera_watch* watch, char** report) {
  return capi::guarded([&] {
    capi::require_call(path, state, ranks, report);
    capi::run_reported(watch, capi::load_policy(policy), report,
                       [&](const tessera::LoadPolicy& request) {
                         return tessera::load(path, state->live, *ranks->group, request);
                       });
  });
}
