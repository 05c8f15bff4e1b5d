#include "lib/format/deepspeed_zero/plain_experts.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "lib/format/deepspeed_zero/expert_grid.h"
#include "lib/format/deepspeed_zero/plain_optim.h"
#include "lib/format/deepspeed_zero/stacked_rows.h"
#include "lib/format/rank_names.h"

namespace tessera::deepspeed {
namespace {

using Ids = std::vector<std::int64_t>;

bool is_expert_group(const Field& group) {
  const auto marked = group.find("moe");
  return marked && marked->value().kind() == Value::Kind::kBool && marked->value().as_bool();
}

/// What the optimizer's groups list: ids of experts, and all others, group by group.
struct GroupIds {
  std::vector<Ids> dense, experts;
};

GroupIds ids_of(const Field& groups) {
  GroupIds out;
  for (const Field& group : groups.items())
    (is_expert_group(group) ? out.experts : out.dense).push_back(group.at(kParams).counts());
  return out;
}

/// The optimizer of one share of the experts.
struct Share {
  std::uint32_t file = 0;
  Value optimizer;  // torch's dict
  Value fields;     // of what wraps it
  std::map<std::int64_t, std::string> names;
};

class Reader {
 public:
  Reader(ZeroCheckpoint& checkpoint, StateAssembler& state) : c_(checkpoint), state_(state) {}

  std::int64_t run() {
    add_weights();
    std::map<std::int64_t, FileName> files;
    for (const FileName& name : c_.folder.foreign)
      if (name.kind == FileName::Kind::kExpert && name.dp_rank >= 0)
        files.emplace(name.dp_rank, name);
    if (files.empty()) return 1;
    const std::int64_t ranks = files.rbegin()->first + 1;
    if (ranks > most_ranks(files.size()) || !missing_ranks(files, ranks).empty())
      c_.findings.error(Finding::kMissingFile,
                        fmt::format("{} optimizer files for {} ranks that share out the experts",
                                    files.size(), ranks),
                        c_.folder.prefix + files.begin()->second.name);
    const std::vector<std::vector<NamedShape>> experts = shared_out(ranks);
    std::vector<Share> shares;
    for (const auto& [rank, name] : files)
      if (auto share = open(name))
        shares.push_back(std::move(*share));
      else
        return ranks;
    bool named = shares.size() == experts.size();
    for (std::size_t s = 0; s < shares.size() && named; ++s)
      named = in_file(c_.path(shares[s].file), [&] { return name_ids(shares[s], experts[s]); });
    named ? add_named(shares) : add_as_stored(shares);
    return ranks;
  }

 private:
  void add_weights() {
    std::vector<FileName> files;
    for (const FileName& name : c_.folder.foreign)
      if (name.kind == FileName::Kind::kExpert && name.dp_rank < 0) files.push_back(name);
    std::ranges::sort(files, {}, [](const FileName& name) {
      return std::tuple(name.layer, name.expert, name.name);
    });
    StackedRows rows;
    for (const FileName& name : files) {
      const std::string path = c_.folder.prefix + name.name;
      const auto file = open_or_report(c_.builder, c_.findings, path, "an expert");
      if (!file) continue;
      in_file(path, [&] {
        for (const NamedTensor& item : tensors_of(Field(c_.builder.archive(*file).root)))
          if (!rows.take(c_, *file, item)) add_weight(*file, item);
      });
    }
    rows.each(
        c_, [&](const std::string& name, const TensorSpec& spec,
                const std::vector<ArchivePiece>& pieces) { state_.add_model(name, spec, pieces); });
  }

  void add_weight(std::uint32_t file, const NamedTensor& item) {
    const ArchiveTensor& stored = c_.tensor(file, item.tensor);
    const ArchivePiece piece = whole_piece_of(stored, file, item.tensor);
    c_.builder.add_tensor(state_.model_path(item.name), {stored.dtype, stored.shape}, {&piece, 1});
    experts_.push_back({item.name, stored.shape});
  }

  /// The experts of each share in the order of its optimizer: layer by layer.
  std::vector<std::vector<NamedShape>> shared_out(std::int64_t ranks) const {
    std::vector<std::string> names;
    for (const NamedShape& expert : experts_) names.push_back(expert.name);
    const ExpertGrid grid(ranks, names);
    std::vector<std::vector<NamedShape>> shares(static_cast<std::size_t>(ranks));
    for (const NamedShape& expert : experts_)
      if (const ExpertPlace* place = grid.find(expert.name))
        shares.at(static_cast<std::size_t>(place->share)).push_back(expert);
    return shares;
  }

  std::optional<Share> open(const FileName& name) {
    const std::string path = c_.folder.prefix + name.name;
    const auto file = open_or_report(c_.builder, c_.findings, path, "a share of the experts");
    if (!file) return std::nullopt;
    return in_file(path, [&]() -> std::optional<Share> {
      const Field root(c_.builder.archive(*file).root);
      const auto optimizer = root.find_present(kOptimizer);
      if (!optimizer) return std::nullopt;
      Share share{*file, optimizer->value(), Value::dict({}), {}};
      if (auto plain = unwrap_optimizer(optimizer->value())) {
        share.optimizer = plain->optimizer;
        share.fields = plain->fields;
      }
      return share;
    });
  }

  /// Shape of an id's state; nullopt: it has none.
  std::optional<Shape> shape_of(const Share& share, const Field& states, std::int64_t id) const {
    for (const Field::Entry& entry : states.entries()) {
      if (!entry.key.value().is_int() || entry.key.value().as_int() != id) continue;
      for (const Field::Entry& leaf : entry.value.entries()) {
        if (!leaf.value.value().is_tensor()) continue;
        const Shape& shape = c_.tensor(share.file, leaf.value.tensor()).shape;
        if (shape.rank() > 0) return shape;
      }
    }
    return std::nullopt;
  }

  /// Whether these parameters can only be those of the ids.
  bool name_all(Share& share, const Field& states, const std::vector<Ids>& groups,
                const std::vector<NamedShape>& parameters) const {
    std::vector<std::optional<Shape>> shapes;
    std::vector<std::size_t> sizes;
    std::vector<Shape> candidates;
    for (const Ids& group : groups) {
      sizes.push_back(group.size());
      for (const std::int64_t id : group) shapes.push_back(shape_of(share, states, id));
    }
    for (const NamedShape& parameter : parameters) candidates.push_back(parameter.shape);
    if (shapes.size() != candidates.size()) return false;
    const IdMapping mapping = map_ids(shapes, sizes, candidates);
    // One group of as many ids as parameters has them in the model's order.
    if (!mapping.complete || (groups.size() > 1 && !mapping.certain)) return false;
    std::size_t i = 0;
    for (const Ids& group : groups)
      for (const std::int64_t id : group)
        share.names[id] = parameters[static_cast<std::size_t>(mapping.candidate[i++])].name;
    return true;
  }

  bool name_ids(Share& share, const std::vector<NamedShape>& experts) {
    const Field optimizer(share.optimizer);
    const Field states = optimizer.at(kState);
    const GroupIds ids = ids_of(optimizer.at(kParamGroups));
    std::vector<NamedShape> dense;
    for (const NamedTensor& item : c_.model.module)
      if (!c_.model.buffers.contains(item.name))
        dense.push_back({item.name, c_.tensor(c_.model.file, item.tensor).shape});
    return name_all(share, states, ids.dense, dense) &&
           name_all(share, states, ids.experts, experts);
  }

  /// State of what is no expert's is the same in all files: the first one's is taken.
  void add_named(const std::vector<Share>& shares) {
    const Path root = root_path(c_.model.naming.optim_root);
    for (std::size_t s = 0; s < shares.size(); ++s) {
      const Share& share = shares[s];
      in_file(c_.path(share.file), [&] {
        const Field optimizer(share.optimizer);
        const GroupIds ids = ids_of(optimizer.at(kParamGroups));
        ValueDict states;
        for (const Field::Entry& entry : optimizer.at(kState).entries()) {
          const auto name = share.names.find(entry.key.count());
          const bool dense = std::ranges::any_of(ids.dense, [&](const Ids& group) {
            return std::ranges::find(group, entry.key.count()) != group.end();
          });
          if (name == share.names.end() || (dense && s > 0)) continue;
          states.emplace_back(text(name->second), entry.value.value());
        }
        c_.builder.add_state(share.file,
                             Value::dict({{text(kState), Value::dict(std::move(states))}}), root);
      });
    }
    const Value groups = named_groups(shares);
    c_.builder.add_state(shares[0].file, Value::dict({{text(kParamGroups), groups}}), root);
    state_.add_globals(shares[0].file, shares[0].fields);
  }

  Value named_groups(const std::vector<Share>& shares) const {
    ValueList out;
    const std::vector<Field> first = Field(shares[0].optimizer).at(kParamGroups).items();
    for (std::size_t g = 0; g < first.size(); ++g) {
      ValueDict options = first[g].dict();
      ValueList members;
      for (const Share& share : shares) {
        if (&share != &shares[0] && !is_expert_group(first[g])) break;
        const auto groups = Field(share.optimizer).at(kParamGroups).items();
        if (groups.size() != first.size())
          fail(Code::kCorrupt, "ranks that share out the experts have other optimizer groups");
        for (const std::int64_t id : groups[g].at(kParams).counts())
          members.push_back(text(share.names.at(id)));
      }
      for (auto& [key, value] : options)
        if (key == text(kParams)) value = Value::list(members);
      out.push_back(Value::dict(std::move(options)));
    }
    return Value::list(std::move(out));
  }

  void add_as_stored(const std::vector<Share>& shares) {
    c_.builder.manifest().notes.push_back(
        {Finding::kUnnamedState, Severity::kWarning,
         "the optimizer's state stays under its ids, one optimizer for each share of the experts: "
         "ids leave open which parameters they are",
         c_.path(shares[0].file), ""});
    for (std::size_t s = 0; s < shares.size(); ++s) {
      Path root = root_path(c_.model.naming.optim_root);
      root.push_back(key_item(fmt::format("rank_{}", s)));
      c_.builder.add_state(shares[s].file, shares[s].optimizer, root);
    }
    state_.add_globals(shares[0].file, shares[0].fields);
  }

  ZeroCheckpoint& c_;
  StateAssembler& state_;
  std::vector<NamedShape> experts_;  // layer by layer, expert by expert
};

}  // namespace

std::int64_t add_plain_experts(ZeroCheckpoint& checkpoint, StateAssembler& state) {
  return Reader(checkpoint, state).run();
}

}  // namespace tessera::deepspeed
