#include "fsdp_core/comm/trace_report.h"

#include <fmt/format.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::fsdp {
namespace {

std::mutex board_mutex;
std::vector<const Communicator*>& board() {
  static std::vector<const Communicator*> all;  // oldest first
  return all;
}

Value text(std::string_view value) { return Value::string(std::string(value)); }

Value record_value(const CommRecord& record) {
  return Value::dict(
      {{text("sequence"), Value::integer(static_cast<std::int64_t>(record.sequence))},
       {text("op"), text(comm_op_name(record.op))},
       {text("phase"), text(comm_phase_name(record.phase))},
       {text("unit"), text(record.unit)},
       {text("dtype"), text(c10::toString(record.dtype))},
       {text("numel"), Value::integer(record.numel)},
       {text("done"), Value::boolean(record.done)},
       {text("issued_us"), Value::integer(record.issued_us)}});
}

Value group_value(const Communicator& comm, std::string_view error) {
  ValueList ranks, records;
  for (const int rank : comm.global_ranks()) ranks.push_back(Value::integer(rank));
  for (const CommRecord& record : comm.records()) records.push_back(record_value(record));
  return Value::dict({{text("name"), text(comm.name())},
                      {text("ranks"), Value::list(std::move(ranks))},
                      {text("error"), text(error)},
                      {text("records"), Value::list(std::move(records))}});
}

/// Whole or not at all: a reader never sees half a file.
void replace_file(const std::filesystem::path& file, const std::string& content) {
  std::filesystem::create_directories(file.parent_path());
  const std::filesystem::path part = file.string() + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << content << '\n';
  out.close();
  if (!out) fail(Code::kIo, fmt::format("cannot write {}", part.string()));
  std::filesystem::rename(part, file);
}

}  // namespace

void TraceBoard::add(const Communicator& comm) {
  const std::lock_guard lock(board_mutex);
  board().push_back(&comm);
}

void TraceBoard::remove(const Communicator& comm) {
  const std::lock_guard lock(board_mutex);
  std::erase(board(), &comm);
}

void TraceBoard::write(const Communicator& failing, int global_rank,
                       const std::filesystem::path& folder, std::string_view reason) noexcept {
  try {
    const std::lock_guard lock(board_mutex);
    std::vector<const Communicator*> groups{&failing};
    for (auto each = board().rbegin(); each != board().rend(); ++each) {
      const Communicator& comm = **each;
      // Saving and loading may run beside, on a thread of their own.
      if (comm.size() == 1 || comm.global_rank() != global_rank ||
          comm.trace_folder() != folder.string() || comm.name() == "save and load")
        continue;
      if (std::ranges::none_of(groups, [&](auto* known) { return known->name() == comm.name(); }))
        groups.push_back(&comm);
    }
    ValueList values;
    for (const Communicator* comm : groups)
      values.push_back(group_value(
          *comm, comm == &failing ? std::string(reason)
                                  : (comm->alive() ? "" : comm->failure().to_string())));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const Value trace = Value::dict(
        {{text("format"), text("tessera-trace")},
         {text("version"), Value::integer(1)},
         {text("rank"), Value::integer(global_rank)},
         {text("written_us"),
          Value::integer(std::chrono::duration_cast<std::chrono::microseconds>(now).count())},
         {text("groups"), Value::list(std::move(values))}});
    replace_file(folder / fmt::format("rank{}.json", global_rank), dump_json(trace));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: rank %d cannot write its trace: %s\n", global_rank,
                 error.what());
  }
}

}  // namespace tessera::fsdp
