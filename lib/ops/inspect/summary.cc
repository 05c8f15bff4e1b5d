#include <fmt/format.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/summary.h>
#include <tessera/state/aliases.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "lib/ops/inspect/listing.h"
#include "lib/ops/open/shared_storage.h"
#include "lib/ops/open/step_name.h"
#include "lib/state/id_answer.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

void add_bytes(std::map<std::string, ByteRow>& rows, const std::string& key,
               const StoredTensor& tensor) {
  ByteRow& row = rows[key];
  row.key = key;
  ++row.tensors;
  row.numel += tensor.spec.shape.numel();
  row.bytes += static_cast<std::uint64_t>(tensor.spec.size_bytes());
}

std::vector<ByteRow> largest_first(std::map<std::string, ByteRow> rows) {
  std::vector<ByteRow> out;
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  std::ranges::stable_sort(out, std::greater<>(), &ByteRow::bytes);
  return out;
}

/// Counters that training loops keep beside the state: "step", "trainer.global_step", "epoch", ...
bool is_counter(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  for (std::string_view word : {"step", "global_step", "global_steps", "iteration", "iter", "epoch",
                                "current_epoch", "batch", "samples", "tokens", "num_tokens"})
    if (last == word) return true;
  return false;
}

class Summarizer {
 public:
  explicit Summarizer(const OpenedCheckpoint& checkpoint)
      : checkpoint_(checkpoint),
        manifest_(checkpoint.manifest),
        roles_(find_roles(manifest_.state)) {}

  SummaryReport run() {
    describe();
    tensors();
    roots();
    for (const OptimState& optim : canonical_optim_states(manifest_, roles_)) optimizer(optim);
    parameters();
    counters();
    out_.tied = shared_storage(checkpoint_);
    globals();
    return std::move(out_);
  }

 private:
  void describe() {
    out_.path = checkpoint_.path;
    out_.display = checkpoint_.display;
    out_.format = manifest_.format;
    out_.dialect = manifest_.dialect;
    out_.detected_by = checkpoint_.detected_by;
    out_.files = manifest_.files.size();
    for (const StoredFile& file : manifest_.files) out_.file_bytes += file.size_bytes;
    out_.world_size = manifest_.world_size;
    out_.world_size_source = manifest_.world_size_source;
    out_.chunks = manifest_.chunks.size();
    // What a format keeps for its own writer is no news to people.
    for (const auto& [key, value] : manifest_.provenance)
      if (!key.starts_with("writer.") && !key.starts_with(kAliasPrefix))
        out_.provenance.emplace_back(key, value);
    out_.aliases = recorded_aliases(manifest_);
    for (const Note& note : checkpoint_.notes) out_.notes.push_back(note);
    out_.beside = checkpoint_.beside;
    if (checkpoint_.seal) out_.lost = checkpoint_.seal->lost;
    for (const Note& note : manifest_.notes) {
      if (note.severity == Severity::kError) {
        out_.complete = false;
        std::string where = note.tensor.empty() ? "" : fmt::format("tensor \"{}\": ", note.tensor);
        out_.problems.push_back(where + note.message +
                                (note.file.empty() ? "" : fmt::format(" [{}]", note.file)));
      } else {
        out_.notes.push_back(note);
      }
    }
  }

  void tensors() {
    std::map<std::string, ByteRow> by_kind, by_dtype;
    std::vector<const EntryRole*> role(manifest_.tensors.size(), nullptr);
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const Value& value = manifest_.state.entries[i].value;
      if (value.is_tensor()) role[value.tensor_index()] = &roles_.entries[i];
      out_.values += !value.is_tensor();
    }
    for (const PartRow& row : part_rows(manifest_.state))
      role[row.tensor] = &roles_.entries[row.entry];
    const std::vector<std::uint32_t> listed = listed_tensors(manifest_);
    out_.embedded_tensors = manifest_.tensors.size() - listed.size();
    for (const std::uint32_t i : listed) {
      const StoredTensor& tensor = manifest_.tensors[i];
      ++out_.tensors;
      out_.tensor_bytes += static_cast<std::uint64_t>(tensor.spec.size_bytes());
      const bool state_leaf =
          tensor.kind == TensorKind::kOptim && role[i] && !role[i]->leaf.empty();
      add_bytes(by_kind,
                state_leaf ? std::string(role[i]->leaf) : std::string(kind_name(tensor.kind)),
                tensor);
      add_bytes(by_dtype, std::string(torch_name(tensor.spec.dtype)), tensor);
      if (is_padded(tensor)) ++out_.padded_tensors;
    }
    out_.by_kind = largest_first(std::move(by_kind));
    out_.by_dtype = largest_first(std::move(by_dtype));
  }

  /// A slice of a flat buffer: its file holds padding beside it.
  bool is_padded(const StoredTensor& tensor) const {
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      if (!manifest_.chunk(tensor, c).is_whole_box()) return true;
    return false;
  }

  void roots() {
    std::vector<RootRow> rows;
    for (std::size_t i = 0; i < manifest_.state.entries.size(); ++i) {
      const StateEntry& entry = manifest_.state.entries[i];
      const std::string entry_name = entry.name;
      const std::string first = !entry.path.empty() ? entry.path[0].text() : entry_name;
      const std::string name = entry_name.starts_with(first + ".") ? first : entry_name;
      const bool top_leaf = name == entry.name;
      const std::string key = top_leaf ? "" : name;
      auto row = std::ranges::find(rows, key, &RootRow::name);
      if (row == rows.end()) {
        rows.push_back({.name = key, .role = "", .tensors = 0, .values = 0, .bytes = 0});
        row = rows.end() - 1;
      }
      const Role role = roles_.entries[i].role;
      const char* word = role == Role::kModel   ? "model"
                         : role == Role::kOther ? "other"
                                                : "optimizer";
      if (row->role.empty() || row->role == "other") row->role = word;
      if (!entry.value.is_tensor()) {
        ++row->values;
        continue;
      }
      ++row->tensors;
      row->bytes += static_cast<std::uint64_t>(
          manifest_.tensors[entry.value.tensor_index()].spec.size_bytes());
    }
    out_.roots = std::move(rows);
  }

  void optimizer(const OptimState& optim) {
    OptimizerSummary row;
    row.root = optim.root;
    row.kind = optim.kind;
    row.dialect = dialect_name(optim.dialect);
    std::set<std::string> leaves;
    unnamed_ids_ = unnamed_ids_ || has_unnamed_ids(optim);
    for (const OptimParameter& p : optim.parameters) {
      row.parameters_with_state += !p.leaves.empty();
      for (const OptimLeaf& leaf : p.leaves) leaves.insert(leaf.name);
      // DeepSpeed keeps fp32 copies of what it does not train, too.
      const bool only_master =
          !optim.groups.empty() && std::ranges::all_of(p.leaves, is_master_leaf, &OptimLeaf::name);
      if (p.group < 0 && only_master) continue;
      trainable_.insert(p.fqn);
      if (p.weight != kNoTensor) trained_.insert(p.weight);  // of several models, one name each
    }
    row.leaves.assign(leaves.begin(), leaves.end());
    row.kind_source =
        row.leaves.empty()
            ? "options of its groups"
            : "names of its state" +
                  std::string(optim.groups.empty() ? "" : " and options of its groups");
    for (const OptimGroup& group : optim.groups) {
      const Value* lr = group.find("lr");
      row.groups.push_back({group.index, group.stored_members.size(), number_of(lr),
                            number_of(group.find("weight_decay")),
                            lr != nullptr && lr->is_tensor()});
    }
    out_.optimizers.push_back(std::move(row));
  }

  void parameters() {
    std::vector<std::size_t> others;  // parameters that no optimizer names
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const StoredTensor* tensor = tensor_of(i);
      if (tensor == nullptr) continue;
      out_.buffers += tensor->kind == TensorKind::kBuffer;
      // What a run keeps beside its model is of the same types and shapes.
      if (tensor->kind != TensorKind::kParam || roles_.entries[i].role != Role::kModel) continue;
      ++out_.parameters;
      out_.parameter_numel += tensor->spec.shape.numel();
      if (out_.optimizers.empty() || unnamed_ids_) continue;
      is_trained(i) ? void(++out_.trainable) : others.push_back(i);
    }
    if (others.empty()) return;
    std::set<Place> trained;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i)
      if (const StoredTensor* tensor = tensor_of(i); tensor != nullptr && is_trained(i))
        if (const auto place = place_of(*tensor)) trained.insert(*place);
    for (const std::size_t i : others) {
      const auto place = place_of(*tensor_of(i));
      ++(place && trained.contains(*place) ? out_.trainable : out_.frozen);
    }
  }

  const StoredTensor* tensor_of(std::size_t entry) const {
    const Value& value = manifest_.state.entries[entry].value;
    return value.is_tensor() ? &manifest_.tensors[value.tensor_index()] : nullptr;
  }
  bool is_trained(std::size_t entry) const {
    const EntryRole& role = roles_.entries[entry];
    if (role.role != Role::kModel) return false;
    return roles_.model_roots.size() > 1
               ? trained_.contains(manifest_.state.entries[entry].value.tensor_index())
               : trainable_.contains(role.fqn);
  }

  /// Where a tensor begins: names of one parameter (tied ones, of which one is listed) begin alike.
  using Place = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint32_t,
                           std::vector<std::int64_t>>;
  std::optional<Place> place_of(const StoredTensor& tensor) const {
    if (tensor.chunk_count == 0 || tensor.spec.shape.numel() == 0) return std::nullopt;
    const Source& source = manifest_.source(tensor, 0);
    const bool is_pending = source.kind == Source::Kind::kPending;
    if (source.kind != Source::Kind::kExtent && !is_pending) return std::nullopt;
    const auto extents = tensor.spec.shape.extents();
    return Place(source.file, source.record, source.offset, is_pending ? source.side : 0,
                 {extents.begin(), extents.end()});
  }

  void counters() {
    for (std::size_t i = 0; i < manifest_.state.entries.size() && out_.numbers.size() < 8; ++i) {
      const StateEntry& entry = manifest_.state.entries[i];
      if (roles_.entries[i].role == Role::kOther && is_counter(entry.name) &&
          entry.value.is_number())
        out_.numbers.push_back(
            {entry.name.substr(entry.name.rfind('.') + 1), entry.value.as_real(), entry.name});
    }
    std::int64_t replicas = 1;
    for (const StoredTensor& tensor : manifest_.tensors) {
      std::map<std::string, std::int64_t> copies;
      if (tensor.chunk_count < 2 || tensor.chunk_count > 4096) continue;
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        replicas = std::max(replicas, ++copies[manifest_.chunk(tensor, c).to_string()]);
    }
    if (replicas > 1)
      out_.numbers.push_back(
          {"copies", static_cast<double>(replicas), "equal chunks in several files"});
    if (out_.numbers.empty())
      if (const auto step = step_of_path(checkpoint_.path))
        out_.numbers.push_back({"step", static_cast<double>(*step), "the folder's name"});
  }

  void globals() {
    std::set<std::string> seen;
    for (const GlobalUse& use : manifest_.globals)
      if (seen.insert(use.name).second) out_.globals.push_back(use);
    const auto rank = [](const GlobalUse& use) { return -static_cast<int>(use.verdict); };
    std::ranges::stable_sort(out_.globals, {}, rank);
  }

  const OpenedCheckpoint& checkpoint_;
  const Manifest& manifest_;
  Roles roles_;
  std::set<std::string> trainable_;
  std::set<std::uint32_t> trained_;  // their tensors
  bool unnamed_ids_ = false;         // which parameters are trained is not known
  SummaryReport out_;
};

}  // namespace

SummaryReport summarize(const OpenedCheckpoint& checkpoint) { return Summarizer(checkpoint).run(); }

}  // namespace tessera
