#include "lib/format/fairscale_fsdp/fs_target.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/format/fairscale_fsdp/fs_reader.h"
#include "lib/format/fairscale_fsdp/fs_wrappers.h"

namespace tessera::fairscale {
namespace {

class Grouper {
 public:
  Grouper(const Manifest& source, const Roles& roles, const std::string& model_root,
          const std::set<std::string>& trained, std::vector<Note>& notes)
      : source_(source), trained_(trained), notes_(notes) {
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      const bool in_root =
          model_root.empty() || source.state.entries[i].name.starts_with(model_root + ".");
      if (roles.entries[i].role != Role::kModel || !in_root) continue;
      order_.push_back({roles.entries[i].fqn, i});
      by_name_.emplace(roles.entries[i].fqn, i);
    }
  }

  Target run() {
    for (const GroupedWrapper& wrapper : source_wrappers()) add(wrapper);
    add_leftovers();
    finish_backings();
    list_keys();
    return std::move(out_);
  }

 private:
  struct Entry {
    std::string fqn;
    std::size_t index = 0;
  };
  struct Draft {  // a backing parameter before its parameters are numbered
    TargetBacking backing;
    std::size_t wrapper = 0;
    std::vector<TargetParameter> parameters;
  };

  std::vector<GroupedWrapper> source_wrappers() const {
    const auto known = source_.provenance.find(std::string(kWrappersKey));
    return known == source_.provenance.end() ? std::vector<GroupedWrapper>()
                                             : decode_wrappers(known->second);
  }
  const StoredTensor* tensor_named(const std::string& fqn) const {
    const auto found = by_name_.find(fqn);
    if (found == by_name_.end()) return nullptr;
    const Value& value = source_.state.entries[found->second].value;
    return value.is_tensor() ? &source_.tensors[value.tensor_index()] : nullptr;
  }
  bool is_parameter(const std::string& fqn) const {
    const StoredTensor* tensor = tensor_named(fqn);
    if (!tensor || tensor->kind != TensorKind::kParam) return false;
    return trained_.empty() || source_.format == "fairscale-fsdp" || trained_.contains(fqn);
  }
  TargetParameter parameter(const std::string& name, const std::string& fqn) const {
    const std::uint32_t tensor = source_.state.entries[by_name_.at(fqn)].value.tensor_index();
    return {name, fqn, tensor, source_.tensors[tensor].spec.shape};
  }

  void add(const GroupedWrapper& grouped) {
    TargetWrapper wrapper{grouped.path, grouped.no_broadcast, {}, {}};
    const std::size_t index = out_.wrappers.size();
    for (const GroupedBacking& stored : grouped.backings) {
      Draft draft{{.name = stored.name,
                   .key = joined(grouped.path, stored.name),
                   .flat = stored.flat,
                   .no_broadcast = grouped.no_broadcast},
                  index,
                  {}};
      for (const std::string& name : stored.parameters) {
        const std::string fqn = joined(grouped.path, name);
        if (tensor_named(fqn) && grouped_.insert(fqn).second)
          draft.parameters.push_back(parameter(name, fqn));
      }
      if (!draft.parameters.empty()) drafts_.push_back(std::move(draft));
    }
    for (const auto& [from, to] : grouped.shared) {
      const std::string source = joined(grouped.path, from), copy = joined(grouped.path, to);
      if (!grouped_.contains(source) || !tensor_named(copy) ||
          tensor_named(copy)->spec != tensor_named(source)->spec)
        continue;
      grouped_.insert(copy);
      shared_.insert(copy);
      wrapper.shared.emplace_back(from, to);
    }
    out_.wrappers.push_back(std::move(wrapper));
  }

  /// Parameters that no wrapper of the source names (it had none, or they were renamed): the
  /// root's.
  void add_leftovers() {
    std::vector<TargetParameter> rest;
    for (const Entry& entry : order_)
      if (!grouped_.contains(entry.fqn) && is_parameter(entry.fqn))
        rest.push_back(parameter(entry.fqn, entry.fqn));
    if (out_.wrappers.empty()) out_.wrappers.push_back({});
    if (rest.empty()) return;
    auto root = std::ranges::find(out_.wrappers, std::string(), &TargetWrapper::path);
    if (root == out_.wrappers.end()) {
      for (Draft& draft : drafts_) ++draft.wrapper;
      root = out_.wrappers.insert(out_.wrappers.begin(), TargetWrapper());
    }
    if (!drafts_.empty())
      notes_.push_back({"CK034", "info",
                        fmt::format("{} parameters are in no wrapper of the source; they are in "
                                    "the root's",
                                    rest.size()),
                        "", ""});
    place(rest, static_cast<std::size_t>(root - out_.wrappers.begin()));
  }
  void place(std::vector<TargetParameter>& rest, std::size_t root) {
    const auto of_root =
        std::ranges::find_if(drafts_, [root](const Draft& draft) { return draft.wrapper == root; });
    if (of_root != drafts_.end() && !of_root->backing.flat) {
      for (TargetParameter& one : rest) {
        const std::string name = one.name;
        drafts_.push_back({{.name = name, .key = name, .flat = false}, root, {std::move(one)}});
      }
    } else if (of_root != drafts_.end() && !out_.wrappers[root].no_broadcast) {
      join(of_root->parameters, rest);
    } else {
      const std::string name = of_root == drafts_.end() ? "flat_param_0" : "flat_param_rest";
      drafts_.push_back({{.name = name, .key = name, .flat = true}, root, std::move(rest)});
    }
  }

  /// Renamed ones go where they stood, if the others stand in the order of the state.
  void join(std::vector<TargetParameter>& parameters, std::vector<TargetParameter>& rest) const {
    const auto place = [this](const TargetParameter& one) { return by_name_.at(one.fqn); };
    const bool in_order = std::ranges::is_sorted(parameters, {}, place);
    const auto middle = static_cast<std::ptrdiff_t>(parameters.size());
    std::ranges::move(rest, std::back_inserter(parameters));
    if (in_order) std::ranges::inplace_merge(parameters, parameters.begin() + middle, {}, place);
  }

  void finish_backings() {
    std::ranges::stable_sort(drafts_, {}, &Draft::wrapper);
    for (Draft& draft : drafts_) {
      check_types(draft);
      draft.backing.dtype = source_.tensors[draft.parameters[0].tensor].spec.dtype;
      draft.backing.first = out_.parameters.size();
      draft.backing.count = draft.parameters.size();
      out_.wrappers[draft.wrapper].backings.push_back(out_.backings.size());
      for (TargetParameter& parameter : draft.parameters) {
        out_.by_fqn.emplace(parameter.fqn, out_.parameters.size());
        out_.parameters.push_back(std::move(parameter));
      }
      out_.backings.push_back(std::move(draft.backing));
    }
  }
  void check_types(const Draft& draft) const {
    const TargetParameter& first = draft.parameters[0];
    for (const TargetParameter& one : draft.parameters) {
      const StoredTensor& tensor = source_.tensors[one.tensor];
      if (tensor.quant >= 0 || is_sub_byte(tensor.spec.dtype))
        in_tensor(tensor.name, [&] {
          fail(Code::kUnsupported, fmt::format("a {} parameter cannot be part of a shard",
                                               torch_name(tensor.spec.dtype)));
        });
      const DType dtype = source_.tensors[first.tensor].spec.dtype;
      if (tensor.spec.dtype != dtype)
        fail(Code::kUnsupported,
             fmt::format("a flat parameter has one dtype: \"{}\" is {}, \"{}\" is {}",
                         printable(first.fqn), torch_name(dtype), printable(one.fqn),
                         torch_name(tensor.spec.dtype)),
             "give them one with --dtype, or leave some out with --exclude");
    }
  }

  /// The weights in the source's order; a flat parameter stands where its first parameter does.
  void list_keys() {
    std::vector<bool> listed(out_.backings.size());
    std::set<std::string> keys;
    for (const Entry& entry : order_) {
      if (shared_.contains(entry.fqn)) continue;
      TargetKey key{.key = entry.fqn, .entry = entry.index};
      if (const auto found = out_.by_fqn.find(entry.fqn); found != out_.by_fqn.end()) {
        const std::size_t backing = out_.backing_of(found->second);
        if (listed[backing]) continue;
        listed[backing] = true;
        key = {.key = out_.backings[backing].key, .backing = backing};
      } else if (source_.state.entries[entry.index].value.is_tensor()) {
        out_.buffers.push_back(entry.fqn);
      }
      if (!keys.insert(key.key).second)
        fail(Code::kUnsupported,
             fmt::format("\"{}\" names both a flat parameter and something "
                         "else of the model",
                         printable(key.key)),
             "rename it with --rename");
      out_.keys.push_back(std::move(key));
    }
  }

  const Manifest& source_;
  const std::set<std::string>& trained_;
  std::vector<Note>& notes_;
  std::vector<Entry> order_;
  std::map<std::string, std::size_t> by_name_;
  std::set<std::string> grouped_;
  std::set<std::string> shared_;
  std::vector<Draft> drafts_;
  Target out_;
};

}  // namespace

std::size_t Target::backing_of(std::size_t parameter) const {
  const auto after = std::ranges::upper_bound(backings, parameter, {}, &TargetBacking::first);
  return static_cast<std::size_t>(after - backings.begin()) - 1;
}

Target group_parameters(const Manifest& source, const Roles& roles, const std::string& model_root,
                        const std::set<std::string>& trained, std::vector<Note>& notes) {
  return Grouper(source, roles, model_root, trained, notes).run();
}

FlatLayout layout_of(const Target& target, const TargetBacking& backing, std::int64_t world_size) {
  std::vector<FlatParameter> parameters;
  for (std::size_t i = 0; i < backing.count; ++i) {
    const TargetParameter& one = target.parameters[backing.first + i];
    if (one.fqn.empty())  // a bare tensor that was saved
      fail(Code::kUnsupported, "FairScale's metadata lists parameters by name, and one has none",
           "write torch-save or torch-dcp, or leave it out (--exclude '')");
    parameters.push_back({one.fqn, one.shape});
  }
  return FlatLayout(parameters, backing.no_broadcast ? 1 : world_size);
}

}  // namespace tessera::fairscale
