#include <fmt/format.h>
#include <tessera/base/error.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/format/torch_files/archive_draft.h"
#include "lib/format/torch_save/parts.h"
#include "lib/format/value_policy.h"

namespace tessera::torch_save {
namespace {

class PlanBuilder {
 public:
  PlanBuilder(const Manifest& source, const TargetRequest& request)
      : source_(source),
        request_(request),
        builder_(source),
        policy_(request, {.opaque = true, .bytes_io = false}, "torch-save", builder_.notes(),
                builder_.left_out()) {}

  OutputPlan build() {
    const std::int64_t world_size =
        request_.mesh ? request_.mesh->world_size() : request_.world_size.value_or(1);
    if (world_size > 1)
      fail(Code::kUnsupported,
           fmt::format("torch-save holds one rank; {} were asked for", world_size),
           "use --to torch-dcp");
    Value root = unflatten(kept_state());
    builder_.add(draft_.finish(
        request_.single_file ? "" : "checkpoint.pt", std::move(root),
        request_.single_file && !request_.file_stem.empty() ? request_.file_stem : "checkpoint"));
    return builder_.finish("torch-save");
  }

 private:
  /// The state as it will be pickled: tensor references are the draft's.
  StateDict kept_state() {
    StateDict out;
    std::vector<std::size_t> kept_before;
    for (const StateEntry& entry : source_.state.entries) {
      kept_before.push_back(out.entries.size());
      if (!entry.value.is_tensor() && !policy_.keeps(entry)) continue;
      out.entries.push_back({entry.name, entry.path,
                             in_tensor(entry.name, [&] { return draft_.take(entry.value); })});
    }
    for (const ContainerNote& note : source_.state.containers) {
      ContainerNote copy = note;
      copy.attributes = policy_.keeps_attributes(note) ? draft_.take(note.attributes) : Value();
      if (note.entries_before < kept_before.size())
        copy.entries_before = kept_before[note.entries_before];
      out.containers.push_back(std::move(copy));
    }
    return out;
  }

  const Manifest& source_;
  const TargetRequest& request_;
  ArchivePlanBuilder builder_;
  ValuePolicy policy_;
  ArchiveDraft draft_{source_, {.format = "torch-save", .quantized = true, .ties = true}};
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return PlanBuilder(source, request).build();
}

}  // namespace tessera::torch_save
