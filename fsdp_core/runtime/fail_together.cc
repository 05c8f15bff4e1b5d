#include "fsdp_core/runtime/fail_together.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <exception>
#include <map>
#include <span>
#include <string_view>

namespace tessera::fsdp {
namespace {

/// The first failure of these ranks: `mine`, where there is one, or theirs. "": all went well.
std::string first_failure(const std::vector<Communicator*>& groups, const CommTag& tag,
                          const Status* mine) {
  std::string text;  // its code, then words
  for (Communicator* comm : groups) {
    if (mine != nullptr && text.empty())
      text = fmt::format("{}rank {}: {}", static_cast<char>(mine->code), comm->global_rank(),
                         mine->message);
    for (const std::vector<std::byte>& theirs :
         comm->all_gather_bytes(std::as_bytes(std::span(text)), tag))
      if (text.empty()) text.assign(reinterpret_cast<const char*>(theirs.data()), theirs.size());
  }
  return text;
}

/// The line of `text` that element `at` lies in.
std::string line_at(std::string_view text, std::size_t at) {
  const std::size_t before = text.rfind('\n', at == 0 ? 0 : at - 1);
  text.remove_prefix(before == std::string_view::npos ? 0 : before + 1);
  return std::string(text.empty() ? "none" : text.substr(0, text.find('\n')));
}

}  // namespace

std::vector<Communicator*> communicators_of(const UnitGroups& groups) {
  std::vector<Communicator*> out;
  for (Communicator* comm : {groups.shard.get(), groups.replicate.get(), groups.extension.get()})
    if (comm != nullptr && comm->size() > 1) out.push_back(comm);
  return out;
}

std::vector<Communicator*> communicators_of(
    const std::vector<std::shared_ptr<detail::Unit>>& units) {
  std::vector<Communicator*> out;
  for (const auto& unit : units)
    for (const UnitGroups* groups : unit->all_comms())
      for (Communicator* comm : communicators_of(*groups))
        if (std::ranges::find(out, comm) == out.end()) out.push_back(comm);
  return out;
}

void check_alike(const std::vector<Communicator*>& groups, const CommTag& tag,
                 const std::string& what, const std::string& lines, const std::string& hint) {
  std::map<int, std::vector<std::byte>> all;  // by global rank; of all groups before any throws
  for (Communicator* comm : groups) {
    auto theirs = comm->all_gather_bytes(std::as_bytes(std::span(lines)), tag);
    for (std::size_t r = 0; r < theirs.size(); ++r)
      all[comm->global_ranks()[r]] = std::move(theirs[r]);
  }
  for (const auto& [rank, bytes] : all) {
    const std::string_view theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (theirs == lines) continue;
    const auto at =
        static_cast<std::size_t>(std::ranges::mismatch(lines, theirs).in1 - lines.begin());
    fail(Code::kInvalidArgument,
         fmt::format("{} differ between ranks: {} on rank {}, {} on rank {}", what,
                     line_at(lines, at), groups.front()->global_rank(), line_at(theirs, at), rank),
         hint);
  }
}

void fail_together(const std::vector<Communicator*>& groups, const TogetherCall& call,
                   const std::function<void()>& body) {
  std::exception_ptr mine;
  Status status;
  try {
    body();
  } catch (...) {
    mine = std::current_exception();
    status = current_exception_status();
  }
  std::string text;
  try {
    text = first_failure(groups, call.tag, mine ? &status : nullptr);
  } catch (...) {
    if (!mine) throw;
  }
  if (mine) std::rethrow_exception(mine);
  if (!text.empty())
    fail(static_cast<Code>(text[0]), fmt::format("{} failed on {}", call.name, text.substr(1)),
         call.hint);
}

}  // namespace tessera::fsdp
