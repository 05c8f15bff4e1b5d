#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/fsdp/trace_merge.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>

namespace tessera::fsdp {
namespace {

struct Record {
  std::string call;  // what all ranks must have alike
  std::string phase;
  bool done = false;
  std::int64_t issued_us = 0;
};

struct RankTrace {
  std::map<std::uint64_t, Record> records;  // the last ones
  std::string error;
};

struct Group {
  std::set<int> members;
  std::map<int, RankTrace> ranks;
};

using Groups = std::map<std::string, Group>;

const Value& field(const Value& object, const char* name) {
  const Value* found = object.find(name);
  if (!found) fail(Code::kCorrupt, fmt::format("\"{}\" is missing", name));
  return *found;
}

const std::string& string_field(const Value& object, const char* name) {
  const Value& value = field(object, name);
  if (!value.is_string()) fail(Code::kCorrupt, fmt::format("\"{}\" is no string", name));
  return value.as_string();
}

std::int64_t integer_field(const Value& object, const char* name) {
  const Value& value = field(object, name);
  if (!value.is_int() || value.as_int() < 0)
    fail(Code::kCorrupt, fmt::format("\"{}\" is no number of something", name));
  return value.as_int();
}

const ValueList& list_field(const Value& object, const char* name) {
  const Value& value = field(object, name);
  if (value.kind() != Value::Kind::kList)
    fail(Code::kCorrupt, fmt::format("\"{}\" is no list", name));
  return value.as_list();
}

Record read_record(const Value& value) {
  Record record;
  const std::string& unit = string_field(value, "unit");
  record.call = fmt::format("{} of {} {} for {}", string_field(value, "op"),
                            integer_field(value, "numel"), string_field(value, "dtype"),
                            unit.empty() ? "the root unit" : fmt::format("unit \"{}\"", unit));
  record.phase = string_field(value, "phase");
  const Value& done = field(value, "done");
  if (done.kind() != Value::Kind::kBool) fail(Code::kCorrupt, "\"done\" is no boolean");
  record.done = done.as_bool();
  record.issued_us = integer_field(value, "issued_us");
  return record;
}

int read_trace(const std::filesystem::path& file, Groups& groups) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof()) fail(Code::kIo, "cannot be read");
  const Value trace = parse_json(std::as_bytes(std::span(text)));
  if (string_field(trace, "format") != "tessera-trace" || integer_field(trace, "version") != 1)
    fail(Code::kCorrupt, "this is no trace that this version knows");
  const int rank = static_cast<int>(integer_field(trace, "rank"));
  for (const Value& value : list_field(trace, "groups")) {
    Group& group = groups[string_field(value, "name")];
    for (const Value& member : list_field(value, "ranks")) {
      if (!member.is_int()) fail(Code::kCorrupt, "a rank is no number");
      group.members.insert(static_cast<int>(member.as_int()));
    }
    RankTrace& mine = group.ranks[rank];
    mine.error = string_field(value, "error");
    for (const Value& record : list_field(value, "records"))
      mine.records[static_cast<std::uint64_t>(integer_field(record, "sequence"))] =
          read_record(record);
  }
  return rank;
}

bool is_trace(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("rank") && name.ends_with(".json") &&
         std::all_of(name.begin() + 4, name.end() - 5, [](char c) { return c >= '0' && c <= '9'; });
}

struct Divergence {
  TraceSummary::Kind kind = TraceSummary::Kind::kAlike;
  std::uint64_t sequence = 0;
  std::int64_t issued_us = 0;
};

Divergence at_sequence(const Group& group, std::uint64_t sequence) {
  Divergence out{TraceSummary::Kind::kAlike, sequence, std::numeric_limits<std::int64_t>::max()};
  const Record* first = nullptr;
  bool absent = false, differ = false, done = true;
  for (const auto& [rank, trace] : group.ranks) {
    const auto found = trace.records.find(sequence);
    if (found == trace.records.end()) {
      absent = true;
      continue;
    }
    const Record& record = found->second;
    if (!first) first = &record;
    differ |= record.call != first->call;
    done &= record.done;
    out.issued_us = std::min(out.issued_us, record.issued_us);
  }
  out.kind = differ   ? TraceSummary::Kind::kDiffer
             : absent ? TraceSummary::Kind::kBehind
             : !done  ? TraceSummary::Kind::kIncomplete
                      : TraceSummary::Kind::kAlike;
  return out;
}

/// The first place where the ranks of a group part.
std::optional<Divergence> divergence_of(const Group& group) {
  // What a rank has forgotten cannot be compared.
  std::uint64_t begin = 0, end = 0;
  for (const auto& [rank, trace] : group.ranks) {
    if (trace.records.empty()) continue;
    begin = std::max(begin, trace.records.begin()->first);
    end = std::max(end, trace.records.rbegin()->first + 1);
  }
  for (std::uint64_t sequence = begin; sequence < end; ++sequence) {
    const Divergence found = at_sequence(group, sequence);
    if (found.kind != TraceSummary::Kind::kAlike) return found;
  }
  return std::nullopt;
}

std::string describe(const Record& record) {
  return fmt::format("{} in {}", record.call, record.phase);
}

std::vector<TraceSummary::Side> sides_of(const Group& group, const Divergence& at) {
  std::vector<TraceSummary::Side> out;
  for (const auto& [rank, trace] : group.ranks) {
    TraceSummary::Side side{rank, false, "", trace.error, 0};
    const auto found = trace.records.find(at.sequence);
    side.issued = found != trace.records.end();
    if (side.issued) {
      side.call = describe(found->second);
      side.after_s = static_cast<double>(found->second.issued_us - at.issued_us) / 1e6;
    } else if (!trace.records.empty()) {
      side.call = describe(trace.records.rbegin()->second);
    }
    out.push_back(std::move(side));
  }
  return out;
}

std::string_view kind_text(TraceSummary::Kind kind) {
  switch (kind) {
    case TraceSummary::Kind::kAlike:
      return "all ranks that wrote did the same";
    case TraceSummary::Kind::kDiffer:
      return "the ranks called different collectives";
    case TraceSummary::Kind::kBehind:
      return "not every rank came to it";
    case TraceSummary::Kind::kIncomplete:
      return "every rank that wrote came to it, and it did not end";
  }
  return "";
}

}  // namespace

TraceSummary merge_traces(const std::filesystem::path& folder) {
  Groups groups;
  TraceSummary summary;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (is_trace(entry.path()))
      in_file(entry.path().string(),
              [&] { summary.ranks.push_back(read_trace(entry.path(), groups)); });
  if (error) fail(Code::kNotFound, fmt::format("{}: {}", folder.string(), error.message()));
  if (summary.ranks.empty())
    fail(Code::kNotFound, fmt::format("no rank<N>.json in {}", folder.string()),
         "set TESSERA_TRACE_DIR, or WorldOptions::trace_folder, to the same folder on all ranks");
  std::ranges::sort(summary.ranks);

  std::set<int> missing;
  std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [name, group] : groups) {
    for (const int member : group.members)
      if (!std::ranges::binary_search(summary.ranks, member)) missing.insert(member);
    const auto found = divergence_of(group);
    if (!found || found->issued_us >= earliest) continue;
    earliest = found->issued_us;
    summary.kind = found->kind;
    summary.group = name;
    summary.sequence = found->sequence;
    summary.sides = sides_of(group, *found);
  }
  summary.missing.assign(missing.begin(), missing.end());
  return summary;
}

std::string TraceSummary::to_string() const {
  std::string text =
      fmt::format("{} {} wrote", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  text += missing.empty() ? "; none is missing\n"
                          : fmt::format("; missing: {} (killed, or hung outside of collectives)\n",
                                        fmt::join(missing, ", "));
  if (kind == Kind::kAlike) return text + fmt::format("{}\n", kind_text(kind));
  text += fmt::format("first divergent collective: number {} of group \"{}\": {}\n", sequence,
                      group, kind_text(kind));
  for (const Side& side : sides) {
    if (side.issued)
      text += fmt::format("  rank {}: {}, {:.3f} s after the first\n", side.rank, side.call,
                          side.after_s);
    else if (side.call.empty())
      text += fmt::format("  rank {}: never came to it, nor to any other\n", side.rank);
    else
      text += fmt::format("  rank {}: never came to it; its last: {}\n", side.rank, side.call);
    if (!side.error.empty()) text += fmt::format("    failed with: {}\n", side.error);
  }
  return text;
}

}  // namespace tessera::fsdp
