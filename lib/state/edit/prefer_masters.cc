#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lib/state/tensor_bytes.h"

namespace tessera {
namespace {

/// Weights take other bytes; names that share a weight's bytes go with it.
class MasterTaker {
 public:
  explicit MasterTaker(Manifest& manifest) : manifest_(manifest) {
    const Roles roles = find_roles(manifest.state);
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      const Value& value = manifest.state.entries[i].value;
      if (roles.entries[i].role != Role::kModel || !value.is_tensor()) continue;
      if (const auto place = place_of(manifest, manifest.tensors[value.tensor_index()]))
        tied_[*place].push_back(value.tensor_index());
    }
  }

  void take(const OptimParameter& p, std::uint32_t master) {
    const StoredTensor weight = manifest_.tensors[p.weight];
    const StoredTensor& copy = manifest_.tensors[master];
    in_tensor(weight.name, [&] {
      if (p.inferred && !p.certain)
        fail(Code::kUnsupported,
             "the optimizer's ids leave open which master copy is its own: shapes allow several "
             "answers");
      if (copy.spec.shape != weight.spec.shape)
        fail(Code::kUnsupported,
             fmt::format("its master copy \"{}\" has shape {}, the weight {}", printable(copy.name),
                         copy.spec.shape.to_string(), weight.spec.shape.to_string()));
    });
    std::vector<std::uint32_t> names = {p.weight};
    if (const auto place = place_of(manifest_, weight); place && tied_.contains(*place))
      names = tied_.at(*place);
    for (const std::uint32_t name : names) use_chunks_of(copy, manifest_.tensors[name]);
    ++taken_;
  }
  std::size_t taken() const { return taken_; }

 private:
  /// Chunks of its own: locating turns each tensor's sources once.
  void use_chunks_of(const StoredTensor& copy, StoredTensor& tensor) {
    const std::uint64_t first = manifest_.chunks.size();
    for (std::uint32_t c = 0; c < copy.chunk_count; ++c) {
      const Chunk chunk = manifest_.chunk(copy, c);
      const Source source = manifest_.source(copy, c);
      manifest_.chunks.add(chunk, source);
    }
    StoredTensor made = copy;  // its type and how it is stored
    made.name = tensor.name;
    made.kind = tensor.kind;
    made.embedded = tensor.embedded;
    made.is_parameter = tensor.is_parameter;
    made.requires_grad = tensor.requires_grad;
    made.always_sharded = tensor.always_sharded;
    made.first_chunk = first;
    tensor = std::move(made);
  }

  Manifest& manifest_;
  std::map<TensorPlace, std::vector<std::uint32_t>> tied_;
  std::size_t taken_ = 0;
};

}  // namespace

std::vector<Note> prefer_masters(Manifest& manifest) {
  MasterTaker taker(manifest);
  std::size_t without = 0;
  for (const OptimState& optim : canonical_optim_states(manifest, find_roles(manifest.state))) {
    for (const OptimParameter& p : optim.parameters) {
      if (p.weight == kNoTensor) continue;  // of a parameter that the model here lacks
      const StoredTensor& weight = manifest.tensors[p.weight];
      if (weight.kind == TensorKind::kBuffer || !is_floating(weight.spec.dtype)) continue;
      const auto master = std::ranges::find_if(p.leaves, [](const OptimLeaf& leaf) {
        return leaf.tensor != kNoTensor && is_master_leaf(leaf.name);
      });
      if (master == p.leaves.end())
        ++without;
      else
        taker.take(p, master->tensor);
    }
  }
  if (taker.taken() == 0)
    fail(Code::kUnsupported, "there are no fp32 master copies of weights here",
         "leave out --prefer master");
  std::vector<Note> notes = {
      {Finding::kMaster, Severity::kInfo,
       fmt::format("{} weights come from their master copies", taker.taken()), "", ""}};
  if (without > 0)
    notes.push_back({Finding::kMaster, Severity::kWarning,
                     fmt::format("{} parameters of the optimizer have no master copy: their stored "
                                 "weights are used",
                                 without),
                     "", ""});
  return notes;
}

}  // namespace tessera
