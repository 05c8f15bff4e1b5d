#include "lib/ops/audit/facts.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/state/aliases.h>
#include <tessera/state/state_values.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "lib/base/damage.h"
#include "lib/ops/audit/stored_step.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/name_families.h"
#include "lib/ops/inspect/optim_values.h"
#include "lib/ops/open/shared_storage.h"
#include "lib/ops/open/step_name.h"

namespace tessera {
namespace {

constexpr std::array kSecondLeaves = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"};

bool is_second(std::string_view leaf) {
  return std::ranges::find(kSecondLeaves, leaf) != kSecondLeaves.end();
}

/// What an element of the leaf keeps of itself over a step, whatever the gradient.
float decay_of(std::string_view leaf, const OptimGroup* group) {
  if (leaf == "max_exp_avg_sq" || leaf == "sum") return 1;
  if (group == nullptr) return kNoDecay;
  if (leaf == "square_avg") return static_cast<float>(number_of(group->find("alpha")).value_or(-1));
  const Value* betas = group->find("betas");
  if (betas == nullptr || leaf != "exp_avg_sq") return kNoDecay;
  const bool pair = (betas->kind() == Value::Kind::kTuple || betas->kind() == Value::Kind::kList) &&
                    betas->as_list().size() == 2 && betas->as_list()[1].is_number();
  return pair ? static_cast<float>(betas->as_list()[1].as_real()) : kNoDecay;
}

/// One optimizer's marks on the tensors of its part.
class OptimizerMarks {
 public:
  OptimizerMarks(const OptimState& optim, std::vector<TensorFact*>& by_index,
                 const std::string& prefix, AuditNames& names)
      : by_index_(by_index), prefix_(prefix), names_(names) {
    for (const OptimGroup& group : optim.groups) groups_.emplace(group.index, &group);
    for (const OptimParameter& p : optim.parameters) mark(optim, p);
  }

 private:
  void mark(const OptimState& optim, const OptimParameter& p) {
    TensorFact* weight = p.weight == kNoTensor ? nullptr : by_index_[p.weight];
    const std::uint32_t parameter = weight ? weight->id : names_.id(prefix_ + p.fqn);
    const auto found = groups_.find(p.group);
    const OptimGroup* group = found == groups_.end() ? nullptr : found->second;
    bool has_state = false;
    for (const OptimLeaf& leaf : p.leaves) {
      if (leaf.tensor == kNoTensor || by_index_[leaf.tensor] == nullptr) continue;
      TensorFact& fact = *by_index_[leaf.tensor];
      fact.parameter = parameter;
      if (fact.numel <= 1 && leaf.name == "step") continue;
      fact.use = use_of(optim, p, leaf);
      if (fact.use == TensorUse::kSecond) fact.decay = decay_of(leaf.name, group);
      has_state = has_state || fact.use != TensorUse::kMaster;
    }
    if (weight == nullptr) return;
    weight->use = TensorUse::kWeight;
    const auto lr = group ? number_of(group->find("lr")) : std::nullopt;
    weight->trains = has_state && lr.value_or(1) != 0;
  }

  static TensorUse use_of(const OptimState& optim, const OptimParameter& p, const OptimLeaf& leaf) {
    if (is_master_leaf(leaf.name)) return TensorUse::kMaster;
    if (is_second(leaf.name)) return TensorUse::kSecond;
    const bool elementwise =
        optim.known != nullptr && optim.cut_of(p, leaf.name) == LeafCut::kElementwise;
    return elementwise ? TensorUse::kMoment : TensorUse::kOther;
  }

  std::vector<TensorFact*>& by_index_;
  const std::string& prefix_;
  AuditNames& names_;
  std::map<std::int64_t, const OptimGroup*> groups_;
};

TensorFact plain_fact(const StoredTensor& tensor, std::uint32_t index, std::uint32_t id) {
  TensorFact fact;
  fact.id = fact.parameter = id;
  fact.index = index;
  fact.numel = tensor.spec.shape.numel();
  fact.rank = static_cast<std::uint8_t>(std::min(tensor.spec.shape.rank(), 255));
  fact.fan_in = fact.rank > 1 ? tensor.spec.shape.inner_numel(0) : 1;
  const bool numbers = is_castable(tensor.spec.dtype) && is_floating(tensor.spec.dtype);
  if (numbers) fact.element_bytes = static_cast<std::uint8_t>(element_bytes(tensor.spec.dtype));
  const bool counts = tensor.kind == TensorKind::kParam || tensor.kind == TensorKind::kOptim ||
                      tensor.kind == TensorKind::kMaster;
  fact.measured = numbers && counts && fact.numel > 1;
  if (tensor.kind == TensorKind::kParam) fact.use = TensorUse::kWeight;
  return fact;
}

/// What the cache goes by: the content where the seal knows it, else which files these are.
std::string identity_of(const OpenedCheckpoint& opened, FileSystem& fs) {
  Sha256 sum;
  const auto add = [&](std::string_view text) {
    sum.update(as_bytes(text)), sum.update(as_bytes("\n"));
  };
  if (opened.seal && !opened.seal->files.empty()) {
    add(opened.seal->root);
    for (const SealedFile& file : opened.seal->files) {
      add(fmt::format("{} {}", file.path, file.size_bytes));
      for (const std::uint32_t crc : file.crc32_per_mib) add(fmt::format("{:08x}", crc));
    }
  } else {
    add(fs.canonical(opened.path));
    for (const StoredFile& file : opened.manifest.files)
      add(fmt::format("{} {} {}", file.path, file.size_bytes, file.mtime_ns));
    for (const Record& record : opened.manifest.records)
      add(fmt::format("{} {} {}", record.offset, record.length, record.crc32));
  }
  return hex(sum.finish());
}

/// Whether config.json in the checkpoint, or beside it, says that embeddings are tied.
bool config_ties(const Directory& directory) {
  constexpr std::uint64_t kMostConfig = std::uint64_t{4} << 20;
  try {
    const auto info = directory.stat("config.json");
    if (!info || info->type != FileType::kRegular || info->size_bytes > kMostConfig) return false;
    Bytes text(static_cast<std::size_t>(info->size_bytes));
    directory.open("config.json")->read_at(0, text);
    const Value config = parse_json(text);
    if (!config.is_dict()) return false;
    const auto says = [](const Value* value) {
      return value != nullptr && value->kind() == Value::Kind::kBool && value->as_bool();
    };
    if (says(config.find("tie_word_embeddings"))) return true;
    const Value* inner = config.find("text_config");
    return inner != nullptr && inner->is_dict() && says(inner->find("tie_word_embeddings"));
  } catch (const Error&) {
    return false;  // somebody else's file
  }
}

/// Archives keep a checksum of each tensor, which is known once it is located. The largest tensors
/// that training moves say enough.
void locate_for_sums(OpenedCheckpoint& opened, std::vector<TensorFact>& facts,
                     const TransferOptions& transfer) {
  constexpr std::size_t kMostChunks = 1024, kMostTensors = 256;
  const Manifest& manifest = opened.manifest;
  std::vector<TensorFact*> unknown;
  for (TensorFact& fact : facts) {
    if (fact.key.exact != 0 || fact.key.around != 0 || !fact.measured) continue;
    const StoredTensor& tensor = manifest.tensors[fact.index];
    if (tensor.chunk_count == 0 || fact.use == TensorUse::kOther) continue;
    const Source& source = manifest.source(tensor, 0);
    if (source.kind == Source::Kind::kPending || manifest.files[source.file].is_archive)
      unknown.push_back(&fact);
  }
  std::ranges::stable_sort(unknown, std::greater<>(),
                           [](const TensorFact* fact) { return fact->bytes(); });
  std::vector<std::uint32_t> wanted;
  std::size_t chunks = 0, taken = 0;
  for (const TensorFact* fact : unknown) {
    chunks += manifest.tensors[fact->index].chunk_count;
    if (taken > 0 && (chunks > kMostChunks || taken >= kMostTensors)) break;
    wanted.push_back(fact->index);
    ++taken;
  }
  if (wanted.empty()) return;
  std::ranges::sort(wanted);
  opened.locate(wanted, read_options(transfer));
  const ContentKeys keys(manifest, opened.seal.get());
  for (std::size_t i = 0; i < taken; ++i)
    unknown[i]->key = keys.of(manifest.tensors[unknown[i]->index]);
}

class FactGatherer {
 public:
  FactGatherer(FileSystem& fs, const AuditOptions& options, AuditNames& names,
               CheckpointFacts& facts)
      : fs_(fs), options_(options), names_(names), facts_(facts) {}

  void gather(const FoundCheckpoint& found, const std::string& run) {
    AuditPart main{found.path, std::string(found.driver->id()), "", {}, ""};
    OpenedCheckpoint opened = open_checkpoint(fs_, main.path, part_options(main, options_));
    describe(opened);
    add(std::move(main), opened);
    steps(opened);
    for (const Beside& beside : opened.beside) add_beside(opened.beside_folder, beside);
    facts_.ties_embeddings = config_ties(*opened.directory) ||
                             config_ties(*fs_.open_directory(run)) || beside_config(opened);
  }

 private:
  bool beside_config(const OpenedCheckpoint& opened) {
    return !opened.beside_folder.empty() && config_ties(*fs_.open_directory(opened.beside_folder));
  }

  void describe(const OpenedCheckpoint& opened) {
    AuditedCheckpoint& row = facts_.row;
    row.world_size = opened.manifest.world_size;
    for (const StoredFile& file : opened.manifest.files) row.bytes += file.size_bytes;
    row.sealed = opened.seal != nullptr;
    if (opened.seal) row.root = opened.seal->root;
    row.complete = true;
    for (const Note& note : opened.manifest.notes) {
      if (note.severity != Severity::kError) continue;
      row.complete = false;
      row.problem = in_its_file(note.file, note.message);
      break;
    }
  }

  void add(AuditPart part, OpenedCheckpoint& opened) {
    std::vector<OptimState> optimizers;
    part.tensors = tensor_facts(opened, part.prefix, names_, &optimizers);
    locate_for_sums(opened, part.tensors, options_.transfer);
    part.identity = identity_of(opened, fs_);
    facts_.row.tensors += leaf_tensors(opened.manifest).size();
    note_optimizers(optimizers, part, opened);
    note_ties(opened, part.prefix);
    const Roles roles = find_roles(opened.manifest.state);
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      const StateEntry& entry = opened.manifest.state.entries[i];
      if (entry.value.is_tensor() || roles.entries[i].role != Role::kOther) continue;
      facts_.values.insert(entry.path.empty() ? std::string(entry.name) : entry.path[0].text());
    }
    facts_.parts.push_back(std::move(part));
  }

  void note_optimizers(const std::vector<OptimState>& optimizers, const AuditPart& part,
                       OpenedCheckpoint& opened) {
    for (const OptimState& optim : optimizers) {
      for (const OptimParameter& p : optim.parameters) {
        if (p.leaves.empty()) continue;
        facts_.has_optimizer = true;
        const bool known = p.weight != kNoTensor;
        facts_.with_state.insert(names_.id(
            known ? std::string(opened.manifest.tensors[p.weight].name) : part.prefix + p.fqn));
      }
      optimizer_step(optim, opened);
      odd_steps(optim);
    }
    facts_.row.parameters_with_state = facts_.with_state.size();
  }

  /// One parameter's is enough: they step together.
  void optimizer_step(const OptimState& optim, OpenedCheckpoint& opened) {
    if (facts_.row.optimizer_step) return;
    for (const OptimParameter& p : optim.parameters) {
      const StepRef& step = p.own_step.known() ? p.own_step : p.group_step;
      if (!step.known()) continue;
      facts_.row.optimizer_step =
          step.value ? step.value : number_in_tensor(opened, step.tensor, options_.transfer);
      return;
    }
  }

  void odd_steps(const OptimState& optim) {
    const auto odd = find_odd_steps(optim, plain_steps(optim));
    if (facts_.odd_steps == 0) facts_.odd_step = odd.first;
    facts_.odd_steps += odd.count;
  }

  void note_ties(const OpenedCheckpoint& opened, const std::string& prefix) {
    for (const auto& [name, kept] : recorded_aliases(opened.manifest))
      facts_.ties.emplace_back(names_.id(prefix + kept), names_.id(prefix + name));
    for (const std::vector<std::string>& group : shared_storage(opened))
      for (std::size_t i = 1; i < group.size(); ++i)
        facts_.ties.emplace_back(names_.id(prefix + group[0]), names_.id(prefix + group[i]));
  }

  void steps(OpenedCheckpoint& opened) {
    const StoredStep step = find_stored_step(opened, fs_, options_.transfer);
    facts_.row.stored_step = step.value;
    facts_.row.stored_step_source = step.source;
  }

  /// An optimizer that lies in a file of its own is looked at like one inside.
  void add_beside(const std::string& folder, const Beside& beside) {
    facts_.beside.insert(kind_of(beside.path));
    if (beside.kind != Beside::Kind::kSidecar) facts_.beside_state.insert(kind_of(beside.path));
    facts_.row.bytes += beside.bytes;
    if (beside.kind != Beside::Kind::kOptimizer) return;
    facts_.has_optimizer = true;
    AuditPart part{join_path(folder, beside.path), "", beside.path + ":", {}, ""};
    try {
      OpenedCheckpoint opened = open_checkpoint(fs_, part.path, part_options(part, options_));
      add(std::move(part), opened);
    } catch (const Error& error) {
      if (error.code() == Code::kCancelled || error.code() == Code::kInternal) throw;
      facts_.row.complete = false;
      facts_.row.problem = fmt::format("{}: {}", beside.path, error.status().message);
    }
  }

  FileSystem& fs_;
  const AuditOptions& options_;
  AuditNames& names_;
  CheckpointFacts& facts_;
};

}  // namespace

std::uint32_t AuditNames::id(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = ids_.find(name); known != ids_.end()) return known->second;
  const auto id = static_cast<std::uint32_t>(names_.size());
  ids_.emplace(names_.emplace_back(name), id);
  return id;
}

std::string AuditNames::name(std::uint32_t id) const {
  const std::lock_guard lock(mutex_);
  return names_[id];
}

std::size_t AuditNames::size() const {
  const std::lock_guard lock(mutex_);
  return names_.size();
}

std::unordered_map<std::uint32_t, const TensorFact*> CheckpointFacts::by_id() const {
  std::unordered_map<std::uint32_t, const TensorFact*> out;
  for (const AuditPart& part : parts)
    for (const TensorFact& fact : part.tensors) out.emplace(fact.id, &fact);
  return out;
}

OpenOptions part_options(const AuditPart& part, const AuditOptions& options) {
  OpenOptions out = options.open;
  if (!part.prefix.empty()) out.selection = {};
  out.from = part.from;
  out.read.tolerate_damage = true;
  return out;
}

std::vector<TensorFact> tensor_facts(OpenedCheckpoint& opened, const std::string& prefix,
                                     AuditNames& names, std::vector<OptimState>* optimizers) {
  expand_state_values(opened.manifest);
  const Manifest& manifest = opened.manifest;
  const std::vector<std::uint32_t> leaves = leaf_tensors(manifest);
  const ContentKeys keys(manifest, opened.seal.get());
  std::vector<TensorFact> facts;
  facts.reserve(leaves.size());
  std::vector<TensorFact*> by_index(manifest.tensors.size(), nullptr);
  for (const std::uint32_t leaf : leaves) {
    const StoredTensor& tensor = manifest.tensors[leaf];
    facts.push_back(plain_fact(tensor, leaf, names.id(prefix + std::string(tensor.name))));
    facts.back().key = keys.of(tensor);
    by_index[leaf] = &facts.back();
  }
  const Roles roles = find_roles(manifest.state);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    if (!value.is_tensor() || by_index[value.tensor_index()] == nullptr) continue;
    // A copy of the model (averaged weights) trains by rules of its own.
    const EntryRole& role = roles.entries[i];
    if (role.role == Role::kOther && !role.fqn.empty())
      by_index[value.tensor_index()]->use = TensorUse::kOther;
  }
  std::vector<OptimState> states = canonical_optim_states(manifest, roles);
  for (const OptimState& optim : states) OptimizerMarks(optim, by_index, prefix, names);
  if (optimizers != nullptr) *optimizers = std::move(states);
  return facts;
}

CheckpointFacts gather_facts(FileSystem& fs, const FoundCheckpoint& found, const std::string& run,
                             const AuditOptions& options, AuditNames& names) {
  CheckpointFacts facts;
  AuditedCheckpoint& row = facts.row;
  row.path = found.path;
  row.name = found.name.empty() ? split_path(found.path).second : found.name;
  row.name_step = step_of_run_name(row.name);
  row.series = kind_of(row.name);
  row.format = found.driver->id();
  try {
    FactGatherer(fs, options, names, facts).gather(found, run);
  } catch (const Error& error) {
    if (error.code() == Code::kCancelled || error.code() == Code::kInternal ||
        error.code() == Code::kResourceExhausted)
      throw;
    row.complete = false;
    row.is_refused = error.code() == Code::kUnsupported;
    row.problem = in_its_file(error.status().context.file, error.status().message);
  }
  return facts;
}

}  // namespace tessera
