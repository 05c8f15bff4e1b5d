#include "lib/format/fairscale_fsdp/target.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lib/format/dtype_refusal.h"
#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/format/fairscale_fsdp/wrappers.h"

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
      const std::string fqn = roles.entries[i].fqn;
      const auto stored = source.stored_fqns.find(fqn);
      current_.emplace(stored == source.stored_fqns.end() ? fqn : stored->second, fqn);
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
    const std::string path = wrapper_path(grouped);
    if (!members(grouped).empty() && !paths_.insert(path).second)
      fail(Code::kUnsupported,
           fmt::format("the parameters of two of FairScale's wrappers have names below \"{}\": "
                       "those of \"{}\" were renamed",
                       printable(path), printable(grouped.path)),
           "rename them so that each wrapper has a path of its own");
    const std::size_t skip = path.empty() ? 0 : path.size() + 1;
    TargetWrapper wrapper{path, grouped.no_broadcast, {}, {}};
    const std::size_t index = out_.wrappers.size();
    for (const GroupedBacking& stored : grouped.backings) {
      Draft draft{{.name = stored.name,
                   .key = {},
                   .stored_key = joined(grouped.path, stored.name),
                   .flat = stored.flat,
                   .no_broadcast = grouped.no_broadcast},
                  index,
                  {}};
      for (const std::string& name : stored.parameters) {
        const std::string* fqn = current_name(joined(grouped.path, name));
        if (fqn != nullptr && grouped_.insert(*fqn).second)
          draft.parameters.push_back(parameter(fqn->substr(skip), *fqn));
      }
      if (draft.parameters.empty()) continue;
      if (!stored.flat) draft.backing.name = draft.parameters[0].name;
      draft.backing.key = joined(path, draft.backing.name);
      drafts_.push_back(std::move(draft));
    }
    for (const auto& [from, to] : grouped.shared) {
      const std::string* source = current_name(joined(grouped.path, from));
      const std::string* copy = current_name(joined(grouped.path, to));
      if (source == nullptr || copy == nullptr || !grouped_.contains(*source) ||
          tensor_named(*copy)->spec != tensor_named(*source)->spec)
        continue;
      grouped_.insert(*copy);
      shared_.insert(*copy);
      wrapper.shared.emplace_back(source->substr(skip), copy->substr(skip));
    }
    out_.wrappers.push_back(std::move(wrapper));
  }

  /// What the source's parameter is called now; nullptr: it was left out.
  const std::string* current_name(const std::string& stored) const {
    const auto found = current_.find(stored);
    return found == current_.end() || !tensor_named(found->second) ? nullptr : &found->second;
  }
  /// Names inside of the wrapper, with those that its parameters have now.
  std::vector<std::pair<std::string, std::string>> members(const GroupedWrapper& grouped) const {
    std::vector<std::pair<std::string, std::string>> out;
    const auto add = [&](const std::string& name) {
      if (const std::string* fqn = current_name(joined(grouped.path, name)))
        out.emplace_back(name, *fqn);
    };
    for (const GroupedBacking& stored : grouped.backings)
      std::ranges::for_each(stored.parameters, add);
    for (const auto& [from, to] : grouped.shared) add(to);
    return out;
  }
  /// The wrapper's own path while all members lie below it, else the one that all of them went to
  /// with the rest of their names as it was.
  std::string wrapper_path(const GroupedWrapper& grouped) const {
    const auto named = members(grouped);
    const auto lies_below = [&](const auto& one) {
      return one.second.starts_with(grouped.path + ".");
    };
    if (grouped.path.empty() || std::ranges::all_of(named, lies_below)) return grouped.path;
    std::optional<std::string> common;
    for (const auto& [name, fqn] : named) {
      const bool whole = fqn == name, inside = fqn.ends_with("." + name);
      const std::string path = inside ? fqn.substr(0, fqn.size() - name.size() - 1) : "";
      if ((!whole && !inside) || common.value_or(path) != path)
        fail(Code::kUnsupported,
             fmt::format("FairScale's wrapper \"{0}\" holds \"{0}.{1}\", which is now \"{2}\": its "
                         "{3} parameters no longer share that path, nor another one",
                         printable(grouped.path), printable(name), printable(fqn), named.size()),
             fmt::format("rename all of them alike (--rename '{}.*=NEW.*'), or write another "
                         "format, as --to torch-dcp",
                         printable(grouped.path)));
      common = path;
    }
    return *common;
  }

  /// Parameters that no wrapper of the source names (it had none, or they were made anew): the
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
      notes_.push_back({Finding::kLeftOut, Severity::kInfo,
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
        drafts_.push_back(
            {{.name = name, .key = name, .stored_key = {}, .flat = false}, root, {std::move(one)}});
      }
    } else if (of_root != drafts_.end() && !out_.wrappers[root].no_broadcast) {
      join(of_root->parameters, rest);
    } else {
      const std::string name = of_root == drafts_.end() ? "flat_param_0" : "flat_param_rest";
      drafts_.push_back(
          {{.name = name, .key = name, .stored_key = {}, .flat = true}, root, std::move(rest)});
    }
  }

  /// New ones go where the state has them, if the others stand in its order.
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
      if (draft.backing.stored_key.empty()) draft.backing.stored_key = draft.backing.key;
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
        refuse_dtype(tensor, "fairscale-fsdp");
      const StoredTensor& wanted = source_.tensors[first.tensor];
      if (tensor.spec.dtype != wanted.spec.dtype)
        fail(Code::kUnsupported,
             fmt::format("a flat parameter has one dtype: \"{}\" is {}, \"{}\" is {}",
                         printable(first.fqn), torch_name(wanted.spec.dtype), printable(one.fqn),
                         torch_name(tensor.spec.dtype)),
             one_type_hint(wanted, tensor));
    }
  }

  /// The weights in the source's order; a flat parameter stands where its first parameter does.
  void list_keys() {
    std::vector<bool> listed(out_.backings.size());
    std::set<std::string> keys;
    for (const Entry& entry : order_) {
      if (shared_.contains(entry.fqn)) continue;
      if (const std::string read = clean_path(entry.fqn); read != entry.fqn)
        fail(
            Code::kUnsupported,
            fmt::format("FairScale takes its wrappers out of names: \"{}\" would be read as \"{}\"",
                        printable(entry.fqn), printable(read)),
            "rename it with --rename");
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
  std::map<std::string, std::string> current_;  // FQN of the source -> FQN
  std::set<std::string> paths_;                 // of wrappers
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
