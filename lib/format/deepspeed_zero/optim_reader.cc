// The base optimizer's state, which lies in the ranks' files as the fp32 buffers do: one flat
// tensor per buffer and leaf, and counters that every rank keeps a copy of. Which leaves there are
// is what any rank says, not the first alone: one that lost its own is damage, not a smaller state.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/format/deepspeed_zero/checkpoint.h"
#include "lib/format/deepspeed_zero/state_assembler.h"
#include "lib/format/deepspeed_zero/whole_leaves.h"

namespace tessera::deepspeed {
namespace {

/// A leaf of one buffer's state.
struct Leaf {
  std::string name;
  const OptimFile* first = nullptr;  // the lowest rank that has it
  const Value* value = nullptr;      // there
};

class OptimReader {
 public:
  explicit OptimReader(ZeroCheckpoint& checkpoint)
      : c_(checkpoint), state_(c_.builder, c_.model), first_(c_.first_rank()), whole_(checkpoint) {}

  void add_state() {
    for (const TrainedParameter& parameter : c_.parameters)
      in_tensor(parameter.name, [&] { add_leaves(parameter); });
    add_derived();
  }
  void add_groups() {
    const NamedGroups named = groups();
    for (std::size_t g = 0; g < named.groups.size(); ++g)
      state_.add_group(named.file, g, named.groups[g].options, named.groups[g].members, named.step);
  }
  void add_fields() {
    ValueDict globals = global_state(first_.optimizer).as_dict();
    ValueList buffers;
    for (const NamedTensor& item : c_.model.module)
      if (c_.model.buffers.contains(item.name)) buffers.push_back(Value::string(item.name));
    if (!buffers.empty()) globals.emplace_back(text(kBufferNames), Value::list(std::move(buffers)));
    state_.add_globals(first_.file, Value::dict(std::move(globals)));
  }

  NamedGroups groups() {
    const OptimFile& from = with_groups();
    NamedGroups out{from.file, c_.stage == 3 ? Value() : from.base_step, {}};
    if (!c_.model.naming.has_groups) return out;
    const std::size_t count = c_.stage == 3 ? from.groups.size() : c_.model.param_shapes.size();
    for (std::size_t g = 0; g < count; ++g)
      out.groups.push_back(
          {g < from.groups.size() ? from.groups[g] : Value(), members_of(from, g)});
    return out;
  }

 private:
  /// The leaves of a buffer's state, in the first rank's order; what only others have follows.
  const std::vector<Leaf>& leaves_of(std::size_t flat) {
    const auto [known, is_new] = leaves_.try_emplace(flat);
    std::vector<Leaf>& leaves = known->second;
    if (!is_new) return leaves;
    for (const auto& rank : c_.ranks) {
      if (!rank) continue;
      const auto state = rank->states.find(static_cast<std::int64_t>(flat));
      if (state == rank->states.end()) continue;
      for (const auto& [key, value] : state->second) {
        std::string name = in_file(c_.path(rank->file),
                                   [&] { return Field(key, {}, std::string(kState)).text(); });
        if (std::ranges::find(leaves, name, &Leaf::name) == leaves.end())
          leaves.push_back({std::move(name), &*rank, &value});
      }
    }
    for (const Leaf& leaf : leaves) check_ranks(flat, leaf);
    return leaves;
  }
  /// Every rank that holds a part of the buffer has the leaf, in the same form.
  void check_ranks(std::size_t flat, const Leaf& leaf) {
    for (const auto& rank : c_.ranks) {
      if (!rank || flat >= rank->fp32.size()) continue;
      const Value* mine = leaf_on(*rank, flat, leaf.name);
      if (!mine && c_.tensor(rank->file, rank->fp32[flat]).shape.numel() > 0)
        c_.findings.error(Finding::kLost,
                          fmt::format("the state of group {} has no \"{}\", which {} has", flat,
                                      printable(leaf.name), c_.path(leaf.first->file)),
                          c_.path(rank->file));
      if (mine && mine->is_tensor() != leaf.value->is_tensor())
        disagree(*rank, fmt::format("\"{}\" of group {} is a tensor in one and none in {}",
                                    printable(leaf.name), flat, c_.path(leaf.first->file)));
      if (mine && !mine->is_tensor() && !leaf.value->is_tensor() &&
          differ(leaf.first->file, *leaf.value, rank->file, *mine))
        disagree(*rank, fmt::format("\"{}\" of group {} differs from that in {}",
                                    printable(leaf.name), flat, c_.path(leaf.first->file)));
    }
  }
  bool differ(std::uint32_t file_a, const Value& a, std::uint32_t file_b, const Value& b) {
    return file_a != file_b &&
           c_.bytes.same(file_a, a, file_b, b) == ArchiveBytes::Answer::kDifferent;
  }
  void disagree(const OptimFile& rank, std::string message) {
    c_.findings.error(Finding::kRanksDisagree, std::move(message), c_.path(rank.file));
  }

  void add_leaves(const TrainedParameter& parameter) {
    const auto& stateless = c_.model.naming.no_state;
    if (std::ranges::find(stateless, parameter.name) != stateless.end()) return;
    if (const std::string& name = c_.model.naming.fp32_leaf; !name.empty())
      state_.add_leaf(
          parameter.name, name, {c_.master_type(parameter), parameter.shape},
          c_.pieces_of(parameter, [&](const FlatRun& run) { return c_.master_of(run); }));
    for (const Leaf& leaf : leaves_of(parameter.flat)) add_leaf(parameter, leaf);
  }

  void add_leaf(const TrainedParameter& parameter, const Leaf& leaf) {
    if (!leaf.value->is_tensor())
      return state_.add_leaf_value(leaf.first->file, parameter.name, leaf.name, *leaf.value);
    const Shape& shape = c_.tensor(leaf.first->file, leaf.value->tensor_index()).shape;
    if (shape.rank() == 0) return add_scalar_leaf(parameter, leaf);
    if (shape.rank() == 1) return add_flat_leaf(parameter, leaf);
    fail(Code::kUnsupported, fmt::format("state \"{}\" has shape {}, which is no partition",
                                         printable(leaf.name), shape.to_string()));
  }

  void add_flat_leaf(const TrainedParameter& parameter, const Leaf& leaf) {
    if (whole_.holds(parameter.flat, leaf.name)) return add_whole_leaf(parameter, leaf);
    std::optional<DType> dtype;
    const auto pieces = c_.pieces_of(parameter, [&](const FlatRun& run) {
      const std::optional<std::uint32_t> tensor = part_on(c_.rank_of(run), run.buffer, leaf.name);
      if (tensor && !dtype) dtype = c_.tensor(c_.rank_of(run).file, *tensor).dtype;
      return tensor;
    });
    if (!dtype) dtype = c_.tensor(leaf.first->file, leaf.value->tensor_index()).dtype;
    state_.add_leaf(parameter.name, leaf.name, {*dtype, parameter.shape}, pieces);
  }
  void add_whole_leaf(const TrainedParameter& parameter, const Leaf& leaf) {
    std::vector<ArchivePiece> pieces;
    if (auto piece = whole_.piece_of(parameter, leaf.name)) pieces.push_back(std::move(*piece));
    const DType dtype = c_.tensor(leaf.first->file, leaf.value->tensor_index()).dtype;
    state_.add_leaf(parameter.name, leaf.name, {dtype, parameter.shape}, pieces);
  }
  /// A rank's part of a flat leaf: as long as its fp32 buffer, and perhaps the padding more.
  std::optional<std::uint32_t> part_on(const OptimFile& rank, std::size_t flat,
                                       const std::string& leaf) {
    const Value* value = leaf_on(rank, flat, leaf);
    if (!value || !value->is_tensor()) return std::nullopt;  // a finding reports it
    const Shape& shape = c_.tensor(rank.file, value->tensor_index()).shape;
    const std::int64_t master = c_.tensor(rank.file, rank.fp32.at(flat)).shape.numel();
    const std::int64_t numel = shape.numel();
    // The oldest files do not say how long the padding is.
    const std::int64_t padding =
        flat < rank.paddings.size() ? rank.paddings[flat] : std::max(numel - master, {});
    if (shape.rank() != 1 || numel < master || numel - master > padding)
      in_file(c_.path(rank.file), [&] {
        fail(Code::kCorrupt, fmt::format("\"{}\" has shape {} for a partition of {} elements and "
                                         "{} of padding",
                                         printable(leaf), shape.to_string(), master, padding));
      });
    return value->tensor_index();
  }

  /// A step counter: stages 1 and 2 keep it as a tensor, stage 3 as a value.
  void add_scalar_leaf(const TrainedParameter& parameter, const Leaf& leaf) {
    const std::uint32_t file = leaf.first->file, tensor = leaf.value->tensor_index();
    if (counters_are_values(c_.model.naming, c_.stage)) {
      const auto [known, is_new] = scalars_.try_emplace({parameter.flat, leaf.name});
      if (is_new) known->second = scalar_of(parameter.flat, leaf);
      if (known->second.is_none())
        return c_.findings.error(Finding::kUnreadableFile, "no rank's copy of it can be read",
                                 c_.path(file),
                                 dotted(state_.state_path(parameter.name, leaf.name)));
      return state_.add_leaf_value(file, parameter.name, leaf.name, known->second);
    }
    check_copies(parameter.flat, leaf);
    const ArchivePiece piece{Chunk::whole_of(Box::whole({})), file, tensor, 0};
    state_.add_leaf(parameter.name, leaf.name, {c_.tensor(file, tensor).dtype, {}}, {&piece, 1});
  }

  /// Every rank stored its own copy of a group's counter; the lowest rank's stands for all.
  void check_copies(std::size_t flat, const Leaf& leaf) {
    if (!checked_.emplace(flat, leaf.name).second) return;
    const TensorRef mine{leaf.first->file, leaf.value->tensor_index()};
    for (const auto& rank : c_.ranks) {
      const Value* value = rank ? leaf_on(*rank, flat, leaf.name) : nullptr;
      if (!value || !value->is_tensor() || rank->file == mine.file) continue;
      if (c_.bytes.same(mine, {rank->file, value->tensor_index()}) ==
          ArchiveBytes::Answer::kDifferent)
        report_copy(*rank, flat, leaf);
    }
  }
  void report_copy(const OptimFile& rank, std::size_t flat, const Leaf& leaf) {
    c_.findings.error(Finding::kDifferentCopies,
                      fmt::format("\"{}\" of group {} differs from that in {}",
                                  printable(leaf.name), flat, c_.path(leaf.first->file)),
                      c_.path(rank.file));
  }
  /// `lost`: its record is damaged, which is a finding.
  std::optional<Value> number_on(const OptimFile& rank, const Value& value, bool& lost) {
    const std::string& path = c_.path(rank.file);
    try {
      return in_file(path, [&] {
        return c_.bytes.number({rank.file, value.tensor_index()}, &lost);
      });
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt || !c_.findings.tolerate()) throw;
      lost = true;
      c_.findings.error(Finding::kUnreadableFile, error.status().message, path);
      return std::nullopt;
    }
  }
  /// None: no rank's can be read.
  Value scalar_of(std::size_t flat, const Leaf& leaf) {
    std::optional<Value> out;
    for (const auto& rank : c_.ranks) {
      const Value* value = rank ? leaf_on(*rank, flat, leaf.name) : nullptr;
      if (!value || !value->is_tensor()) continue;
      bool lost = false;
      const std::optional<Value> number = number_on(*rank, *value, lost);
      if (lost) continue;
      if (!number)
        fail(Code::kUnsupported,
             fmt::format("\"{}\" is of a type that is no number", printable(leaf.name)));
      if (out && !(*number == *out)) report_copy(*rank, flat, leaf);
      if (!out) out = *number;
    }
    return out.value_or(Value());
  }

  // Groups.

  /// The lowest rank that has groups; all have the same.
  const OptimFile& with_groups() {
    const OptimFile* found = &first_;
    for (const auto& rank : c_.ranks)
      if (rank && found->groups.empty() && !rank->groups.empty()) found = &*rank;
    for (const auto& rank : c_.ranks) {
      if (!rank || &*rank == found) continue;
      if (rank->groups.size() != found->groups.size())
        disagree(*rank,
                 fmt::format("its optimizer has {} groups, that in {} has {}", rank->groups.size(),
                             c_.path(found->file), found->groups.size()));
      for (std::size_t g = 0; g < std::min(rank->groups.size(), found->groups.size()); ++g)
        if (differ(found->file, found->groups[g], rank->file, rank->groups[g]))
          disagree(*rank, fmt::format("options of group {} differ from those in {}", g,
                                      c_.path(found->file)));
    }
    return *found;
  }

  std::vector<std::string> members_of(const OptimFile& from, std::size_t group) const {
    std::vector<std::string> members;
    if (c_.stage != 3 && c_.expert_ranks > 1) {
      for (const TrainedParameter& parameter : c_.parameters)
        if (parameter.flat == group && !is_empty(parameter.name)) members.push_back(parameter.name);
    } else if (c_.stage != 3) {
      members =
          group_order(c_.model.param_shapes[group], is_round_robin(c_.model.root), c_.world_size());
    } else {
      const auto listed = Field(from.groups[group]).at(kParams).counts();
      const std::set<std::int64_t> ids(listed.begin(), listed.end());
      for (const TrainedParameter& parameter : c_.parameters)
        if (ids.contains(static_cast<std::int64_t>(parameter.flat)) && !is_empty(parameter.name))
          members.push_back(parameter.name);
    }
    for (const auto& [name, in_group, place] : c_.model.naming.empty)
      if (static_cast<std::size_t>(in_group) == group && c_.trained.contains(name))
        members.insert(members.begin() + std::min(place, static_cast<std::int64_t>(members.size())),
                       name);
    return members;
  }
  bool is_empty(const std::string& name) const {
    return std::ranges::any_of(c_.model.naming.empty,
                               [&](const auto& item) { return std::get<0>(item) == name; });
  }

  void add_derived() {
    const ModelFile& model = c_.model;
    for (const NamedTensor& item : model.naming.fp32) state_.add_derived_fp32(model.file, item);
    if (c_.stage == 3 || !model.naming.derive_fp32) return;
    for (const NamedTensor& item : model.module)
      if (!c_.trained.contains(item.name)) state_.add_derived_fp32(model.file, item);
  }

  ZeroCheckpoint& c_;
  StateAssembler state_;
  const OptimFile& first_;
  WholeLeaves whole_;
  std::map<std::size_t, std::vector<Leaf>> leaves_;  // by buffer
  std::set<std::pair<std::size_t, std::string>> checked_;
  std::map<std::pair<std::size_t, std::string>, Value> scalars_;  // stage 3, by buffer and leaf
};

}  // namespace

void add_optimizer(ZeroCheckpoint& checkpoint) {
  OptimReader reader(checkpoint);
  reader.add_state();
  reader.add_groups();
  reader.add_fields();
}

void add_optimizer_state(ZeroCheckpoint& checkpoint) { OptimReader(checkpoint).add_state(); }
NamedGroups optimizer_groups(ZeroCheckpoint& checkpoint) {
  return OptimReader(checkpoint).groups();
}
void add_optimizer_fields(ZeroCheckpoint& checkpoint) { OptimReader(checkpoint).add_fields(); }

}  // namespace tessera::deepspeed
