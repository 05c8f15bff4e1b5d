#include "fsdp_core/runtime/unit_digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/fsdp/comm_hook.h>

#include <algorithm>

#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp::detail {
namespace {

std::string dtype_text(const std::optional<at::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "as stored";
}

std::string precision_text(const MixedPrecision& p) {
  return fmt::format("parameters {}, reduction {}, buffers {}, output {}{}{}",
                     dtype_text(p.param_dtype), dtype_text(p.reduce_dtype),
                     dtype_text(p.buffer_dtype), dtype_text(p.output_dtype),
                     p.keep_low_precision_grads ? ", gradients kept low" : "",
                     p.keep_full_precision ? ", full precision" : "");
}

std::string prefetch_text(const Options& options) {
  constexpr const char* kBackward[] = {"before", "after", "none"};
  return fmt::format("backward {}, forward {}, at most {}",
                     kBackward[static_cast<int>(options.backward_prefetch)],
                     options.forward_prefetch ? "yes" : "no", options.max_prefetch_count);
}

/// For a parameter over a mesh of its own.
std::string ranks_text(const UnitGroups& comms) {
  return fmt::format(", over {} shards and {} replicas of its own", comms.shards(),
                     comms.replicas());
}

std::string parameter_text(Unit& unit, const ParamGroup& group, std::size_t p) {
  const Param& param = group.params()[p];
  const int dim = group.layout().shard(p).dim;
  return fmt::format("parameter \"{}\" {} [{}]{}{}{}", param.fqn,
                     c10::toString(param.shard.scalar_type()), fmt::join(param.sizes, ", "),
                     dim == 0 ? "" : fmt::format(", cut on dim {}", dim),
                     &group.comms() == &unit.comms() ? "" : ranks_text(group.comms()),
                     param.requires_grad ? "" : ", frozen");
}

template <class Add>
void add_list(const char* what, const std::vector<std::weak_ptr<Unit>>& units, const Add& add) {
  std::string names;
  for (const std::weak_ptr<Unit>& each : units)
    if (const auto unit = each.lock()) names += (names.empty() ? "" : ", ") + unit->label();
  if (!names.empty()) add(what, names);
}

void add_unit(Unit& unit, Digest& out) {
  const Options& options = unit.options();
  const auto add = [&](const char* what, const std::string& value) {
    out.emplace_back(unit.name(), fmt::format("{} {}", what, value));
  };
  add("strategy", std::string(unit.strategy().name));
  add("ranks:",
      fmt::format("{} shards, {} replicas", unit.comms().shards(), unit.comms().replicas()));
  add("layout", options.layout == MemoryLayout::kFlat ? "flat" : "per parameter");
  add("after forward it", unit.reshards_after_forward() ? "is freed" : "is kept");
  add("precision:", precision_text(options.mixed_precision));
  if (unit.full_precision_in_eval()) add("precision", "is full in evaluation");
  add("prefetch:", prefetch_text(options));
  add_list("gathers ahead in forward:", unit.forward_prefetch, add);
  add_list("gathers ahead in backward:", unit.backward_prefetch, add);
  if (options.find_unused_parameters) add("unused parameters", "are looked for");
  if (options.gradient_divide_factor)
    add("gradients are divided by", fmt::to_string(*options.gradient_divide_factor));
  if (unit.comm_hook) add("communication hook:", unit.comm_hook->name);
  if (unit.gather_hook) add("gather hook:", unit.gather_hook->name);
  if (unit.all_reduce_hook) add("reduced gradients", "go through an all-reduce hook");
  if (!unit.unshards_in_backward) add("in backward it", "stays sharded");
  if (unit.comms().reduce != unit.comms().shard)
    add("reductions", "have a communicator of their own");
  if (unit.stepper) add("its optimizer", "steps in backward");
  for (const std::unique_ptr<ParamGroup>& group : unit.groups())
    for (std::size_t p = 0; p < group->params().size(); ++p)
      out.emplace_back(unit.name(), parameter_text(unit, *group, p));
}

std::string quoted(const std::string& unit) {
  return unit.empty() ? "the root unit" : fmt::format("unit \"{}\"", unit);
}

}  // namespace

Digest digest_of(const std::vector<std::shared_ptr<Unit>>& units) {
  Digest out;
  for (const std::shared_ptr<Unit>& unit : units) add_unit(*unit, out);
  return out;
}

std::string encode(const Digest& digest) {
  std::string text;
  for (const auto& [unit, property] : digest) {
    text += unit;
    text += '\0';
    text += property;
    text += '\0';
  }
  return text;
}

Digest decode_digest(const std::string& text) {
  Digest out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t middle = std::min(text.find('\0', begin), text.size());
    const std::size_t end = std::min(text.find('\0', middle + 1), text.size());
    if (middle == text.size()) break;
    out.emplace_back(text.substr(begin, middle - begin), text.substr(middle + 1, end - middle - 1));
    begin = end + 1;
  }
  return out;
}

std::string first_difference(const Digest& one, int rank_of_one, const Digest& other,
                             int rank_of_other) {
  const auto [a, b] = std::ranges::mismatch(one, other);
  if (a == one.end() && b == other.end()) return "";
  const std::string ranks = fmt::format("ranks {} and {}", rank_of_one, rank_of_other);
  if (a != one.end() && b != other.end() && a->first == b->first)
    return fmt::format("{} disagree about {}: on rank {} {}, on rank {} {}", ranks,
                       quoted(a->first), rank_of_one, a->second, rank_of_other, b->second);
  const auto place = [](const Digest& digest, Digest::const_iterator at) {
    return at == digest.end() ? std::string("nothing more")
                              : fmt::format("{} ({})", quoted(at->first), at->second);
  };
  return fmt::format("{} wrapped the model differently: where rank {} has {}, rank {} has {}",
                     ranks, rank_of_one, place(one, a), rank_of_other, place(other, b));
}

}  // namespace tessera::fsdp::detail
