#include "fsdp_core/runtime/fail_together.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <exception>
#include <span>

namespace tessera::fsdp {
namespace {

/// The first failure of these ranks: `mine`, where there is one, or theirs. "": all went well.
std::string first_failure(UnitGroups& groups, const CommTag& tag, const Status* mine) {
  std::string text;  // its code, then words
  for (Communicator* comm : {groups.shard.get(), groups.replicate.get(), groups.extension.get()}) {
    if (comm == nullptr || comm->size() == 1) continue;
    if (mine != nullptr && text.empty())
      text = fmt::format("{}rank {}: {}", static_cast<char>(mine->code), comm->global_rank(),
                         mine->message);
    for (const std::vector<std::byte>& theirs :
         comm->all_gather_bytes(std::as_bytes(std::span(text)), tag))
      if (text.empty()) text.assign(reinterpret_cast<const char*>(theirs.data()), theirs.size());
  }
  return text;
}

}  // namespace

void fail_together(UnitGroups& groups, const TogetherCall& call,
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
