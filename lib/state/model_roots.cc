#include "lib/state/model_roots.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "lib/state/model_names.h"
#include "lib/state/sharded_object.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

/// The place of a weight in the key under which several of its parameters stand.
std::string_view first_key(std::string_view name) { return name.substr(0, name.find('.')); }

std::string_view last_key(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

/// Leaves that only optimizers keep: a parameter's state in a dict of its own.
bool is_moment(std::string_view key) {
  for (const std::string_view known :
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
        "acc_delta", "exp_avg_sq_row", "exp_avg_sq_col"})
    if (key == known) return true;
  return false;
}

class ModelFinder {
 public:
  ModelFinder(const StateDict& state, Roles& roles) : state_(state), roles_(roles) {
    for (const StateEntry& entry : state.entries)
      weights_.push_back(entry.value.is_tensor() ||
                         (holds_weights(entry.value) && !parse_sharded_object(entry.name)));
  }

  void run() {
    collect_names();
    find_statistics();
    count();
    choose_roots();
    for (std::size_t i = 0; i < state_.entries.size(); ++i) assign(i);
    find_copies();
  }

 private:
  using Counts = std::map<std::string, std::size_t, std::less<>>;

  bool is_by_id(std::int32_t root) const {
    return roles_.optimizers[static_cast<std::size_t>(root)].dialect == OptimDialect::kById;
  }

  /// An id is no name: "model.scales.0" is not the weight of parameter 0.
  void collect_names() {
    hits_.resize(roles_.optimizers.size());
    ids_.resize(roles_.optimizers.size());
    for (const EntryRole& role : roles_.entries) {
      if (role.role != Role::kOptimState) continue;
      if (is_by_id(role.root)) {
        auto& ids = ids_[static_cast<std::size_t>(role.root)];
        if (ids.size() < 2) ids.insert(role.fqn);
        continue;
      }
      std::vector<std::int32_t>& users = users_[role.fqn];
      user_keys_.insert(first_key(role.fqn));
      if (std::ranges::find(users, role.root) == users.end()) users.push_back(role.root);
    }
  }

  /// Dicts of nothing but a mean, a variance, a count: of observations or rewards (PPO's obs_rms).
  void find_statistics() {
    if (roles_.optimizers.empty()) return;  // of a run alone
    std::map<std::string_view, bool> has_mean;
    const auto each_item = [&](const auto& visit) {
      for (const StateEntry& entry : state_.entries) {
        const std::string_view dict = dict_of(entry);
        if (!dict.empty()) visit(dict, last_item(entry));
      }
    };
    each_item([&](std::string_view dict, std::string_view item) {
      if (is_statistic_name(item)) has_mean[dict] |= is_mean_name(item);
    });
    if (has_mean.empty()) return;
    each_item([&](std::string_view dict, std::string_view item) {
      if (!is_statistic_name(item)) has_mean.erase(dict);
    });
    for (const auto& [dict, mean] : has_mean)
      if (mean) statistics_.insert(dict);
  }

  /// "obs_rms" of "obs_rms.mean"; "" where the entry stands at the top.
  static std::string_view dict_of(const StateEntry& entry) {
    const std::string_view name = entry.name, item = last_item(entry);
    if (entry.path.size() < 2 || item.empty() || item.size() >= name.size()) return "";
    return name.substr(0, name.size() - item.size() - 1);
  }

  void add_hit(std::string_view name, std::string_view prefix) {
    const auto found = users_.find(name);
    if (found == users_.end()) return;
    for (const std::int32_t user : found->second) {
      Counts& counts = hits_[static_cast<std::size_t>(user)];
      const auto known = counts.find(prefix);
      if (known == counts.end()) {
        counts.emplace(prefix, 1);
        stored_order_.emplace(prefix, stored_order_.size());
      } else {
        ++known->second;
      }
    }
  }

  /// How many weights stand below which key: by the optimizers' names, and by well-known ones.
  void count() {
    const std::vector<std::string> beside = keys_beside_optimizers();
    for (std::size_t i = 0; i < state_.entries.size(); ++i) {
      const StateEntry& entry = state_.entries[i];
      if (roles_.entries[i].role != Role::kOther || !is_weight(i)) continue;
      const std::string_view name = entry.name;
      const bool of_modules = last_item(entry).find('.') != std::string_view::npos;
      (entry.path.size() > 1 ? modules_below_ : modules_at_top_) |= of_modules;
      if (users_.contains(name)) {
        add_hit(name, "");
        ++(entry.path.size() > 1 ? deep_at_top_ : flat_at_top_);
      }
      for (std::size_t dot = name.find('.'); dot != name.npos && !users_.empty();
           dot = name.find('.', dot + 1))
        add_hit(name.substr(dot + 1), name.substr(0, dot));
      const std::string known = known_root(entry, beside);
      known.empty() ? ++others_ : ++tensors_[known];
    }
  }

  /// "state" of "state.optimizers.AdamW": where a model may stand beside the optimizer.
  std::vector<std::string> keys_beside_optimizers() const {
    std::vector<std::string> keys;
    for (const OptimizerRoot& optimizer : roles_.optimizers)
      for (std::size_t dot = optimizer.name.find('.'); dot != std::string::npos;
           dot = optimizer.name.find('.', dot + 1))
        if (std::string key = optimizer.name.substr(0, dot);
            std::ranges::find(keys, key) == keys.end())
          keys.push_back(std::move(key));
    return keys;
  }

  /// The well-known key that the entry stands below; "": none.
  std::string known_root(const StateEntry& entry, const std::vector<std::string>& beside) const {
    const std::string_view name = entry.name, first = first_key(name);
    // Keys with dots in a flat dict are FQNs themselves: Hugging Face's `model.norm.weight` stands
    // beside `lm_head.weight`. Beside an optimizer they stand for a tree.
    const bool nested = entry.path.size() != 1 || !roles_.optimizers.empty();
    const bool whole = !entry.value.is_tensor();  // "model": a module, a dict as one value
    if ((nested || whole) && (whole || name.size() > first.size()) && is_model_name(first))
      return std::string(first);
    for (const std::string& key : beside) {
      if (!name.starts_with(key) || name.size() <= key.size() || name[key.size()] != '.') continue;
      const std::string_view rest = name.substr(key.size() + 1), next = first_key(rest);
      if (is_model_name(next) && (whole || rest.size() > next.size()))
        return key + "." + std::string(next);
    }
    return "";
  }

  void choose_roots() {
    bool by_name = false, open = false;
    for (std::size_t o = 0; o < hits_.size(); ++o) {
      if (hits_[o].empty()) continue;
      by_name = true;
      open = choose_for(o) || open;
    }
    if (by_name && open) add_rivals();
    if (by_name) return;
    if (!tensors_.empty() && (others_ == 0 || !roles_.optimizers.empty() || tensors_.size() == 1)) {
      for (const auto& [root, count] : tensors_) roles_.model_roots.push_back(root);
    } else if (others_ > 0) {
      roles_.model_roots = {""};
    }
  }

  std::int32_t number_of(const std::string& root) {
    const auto known = std::ranges::find(roles_.model_roots, root);
    if (known != roles_.model_roots.end())
      return static_cast<std::int32_t>(known - roles_.model_roots.begin());
    roles_.model_roots.push_back(root);
    return static_cast<std::int32_t>(roles_.model_roots.size() - 1);
  }

  /// The keys under which most of an optimizer's names stand: copies of the model have them as well.
  std::vector<std::string> best_of(std::size_t optimizer) const {
    std::size_t most = 0;
    for (const auto& [root, hits] : hits_[optimizer]) most = std::max(most, hits);
    std::vector<std::string> best;
    for (const auto& [root, hits] : hits_[optimizer])
      if (hits == most) best.push_back(root);
    std::ranges::sort(best, {}, [&](const std::string& root) { return stored_order_.at(root); });
    keep_if_any(best, [](const std::string& root) { return !is_copy_name(root); });
    keep_if_any(best, [](const std::string& root) {
      return root.empty() || is_model_name(last_key(root));
    });
    return best;
  }

  template <class Test>
  static void keep_if_any(std::vector<std::string>& roots, Test test) {
    if (std::ranges::any_of(roots, test))
      std::erase_if(roots, [&](const std::string& root) { return !test(root); });
  }

  /// Whether its names fit several models, so that something else decided.
  bool choose_for(std::size_t o) {
    OptimizerRoot& optimizer = roles_.optimizers[o];
    std::vector<std::string> best = best_of(o);
    const bool open = best.size() > 1;
    if (open) {
      rivals_.insert(rivals_.end(), best.begin(), best.end());
      keep_nearest(optimizer.name, best,
                   [](const std::string& root) -> const std::string& { return root; });
      std::vector<std::string> agreeing;
      for (const std::string& root : best)
        if (names_agree(optimizer.name, root)) agreeing.push_back(root);
      optimizer.model_certain = best.size() == 1 || agreeing.size() == 1;
      if (agreeing.size() == 1) best = agreeing;
    }
    // As many optimizers as models: in stored order.
    const bool in_order = open && !optimizer.model_certain && best.size() == hits_.size();
    optimizer.model = number_of(best[in_order ? o : 0]);
    return open;
  }

  /// Models that other optimizers' names fit equally well are models, too.
  void add_rivals() {
    for (const std::string& root : rivals_) number_of(root);
  }

  /// At the top stand a model's tensors, and what holds some. Where its names are single keys, what
  /// stands deeper is no part of it.
  bool is_weight_at_top(std::size_t i) const {
    const StateEntry& entry = state_.entries[i];
    if (!is_weight(i)) return false;
    if (users_.contains(std::string_view(entry.name))) return true;
    const bool flat = flat_at_top_ > 0 && deep_at_top_ == 0;
    if (flat && entry.path.size() > 1) return false;
    const std::string_view name = entry.name, first = first_key(name);
    const bool alone = first.size() == name.size();
    if (alone && entry.path.size() <= 1) {
      if (!entry.value.is_tensor()) return !is_run_state_name(name);
      // Of a run whose models are state dicts below keys, a tensor beside those is none of theirs,
      // but for one that an optimizer trains by itself.
      if (roles_.optimizers.empty() || trained_alone(name)) return true;
      return !beside_models() && !is_counter_name(name);
    }
    const bool in_run = !roles_.optimizers.empty() && beside_models();
    if (in_run && statistics_.contains(dict_of(entry))) return false;
    const bool apart = entry.path.size() > 1 || (!users_.empty() && !user_keys_.contains(first));
    if (apart && is_run_state_name(first)) return false;
    return !is_moment(last_key(name));
  }

  bool beside_models() const { return modules_below_ && !modules_at_top_; }

  bool trained_alone(std::string_view tensor) const {
    for (std::size_t o = 0; o < roles_.optimizers.size(); ++o)
      if (ids_[o].size() == 1 && trains_tensor(roles_.optimizers[o].name, tensor)) return true;
    return false;
  }

  void assign(std::size_t i) {
    EntryRole& role = roles_.entries[i];
    if (role.role != Role::kOther) return;
    const SharedText& name = state_.entries[i].name;
    for (const std::string& root : roles_.model_roots) {
      const bool at_top = root.empty();
      const bool is_root = name == root && !state_.entries[i].value.is_tensor() && is_weight(i);
      if (at_top && is_weight(i) && is_below_optimizer(name, role)) return;
      if (at_top ? !is_weight_at_top(i) : !name.starts_with(root + ".") && !is_root) continue;
      role.role = Role::kModel;
      role.fqn = at_top || is_root ? name : SharedText(name.substr(root.size() + 1));
      if (state_.entries[i].value.is_tensor()) names_.insert(role.fqn);
      return;
    }
  }

  /// Weights at the top stand beside "optimizer", not below it: what an optimizer keeps there besides
  /// state and groups is its own.
  bool is_below_optimizer(std::string_view name, EntryRole& role) const {
    for (std::size_t i = 0; i < roles_.optimizers.size(); ++i) {
      const std::string& optimizer = roles_.optimizers[i].name;
      if (optimizer.empty() || !name.starts_with(optimizer) ||
          name.substr(optimizer.size(), 1) != ".")
        continue;
      role.role = Role::kOptimGroup;
      role.root = static_cast<std::int32_t>(i);
      return true;
    }
    return false;
  }

  /// A subtree with half of the model's names or more is a copy of it: averaged weights.
  void find_copies() {
    if (names_.empty()) return;
    std::map<std::string_view, std::vector<std::size_t>> copies;  // by what stands before the name
    for (std::size_t i = 0; i < state_.entries.size(); ++i) {
      if (roles_.entries[i].role != Role::kOther || !state_.entries[i].value.is_tensor()) continue;
      const std::string_view name = state_.entries[i].name;
      for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
        if (!names_.contains(name.substr(dot + 1))) continue;
        copies[name.substr(0, dot)].push_back(i);
        break;
      }
    }
    for (const auto& [prefix, entries] : copies) {
      if (2 * entries.size() < names_.size()) continue;
      for (const std::size_t i : entries)
        roles_.entries[i].fqn = SharedText(state_.entries[i].name.substr(prefix.size() + 1));
    }
  }

  /// The key that the entry has in its dict: "0.weight" of a state dict.
  static std::string_view last_item(const StateEntry& entry) {
    if (entry.path.empty() || entry.path.back().kind != PathItem::Kind::kKey) return "";
    return entry.path.back().key;
  }

  bool is_weight(std::size_t i) const { return weights_[i]; }

  const StateDict& state_;
  Roles& roles_;
  std::vector<bool> weights_;  // by entry: a tensor, or a value with some inside
  std::unordered_map<std::string_view, std::vector<std::int32_t>> users_;  // optimizers by name
  std::unordered_set<std::string_view> user_keys_;  // what those names begin with
  std::vector<Counts> hits_;                     // by optimizer: its names, by the key before them
  std::vector<std::set<std::string_view>> ids_;  // by optimizer, the first two
  std::set<std::string_view> statistics_;        // dicts
  std::map<std::string, std::size_t, std::less<>> stored_order_;
  Counts tensors_;  // below well-known keys
  std::size_t others_ = 0, flat_at_top_ = 0, deep_at_top_ = 0;
  bool modules_at_top_ = false, modules_below_ = false;  // keys of state dicts, "0.weight"
  std::vector<std::string> rivals_;
  std::unordered_set<std::string_view> names_;  // of the model
};

}  // namespace

namespace {

/// It holds arrays and nothing else: NumPy's random state is a tuple that holds one, too.
bool is_list_of_arrays(const Value& value) {
  const bool is_list = value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple;
  return is_list && !value.as_list().empty() &&
         std::ranges::all_of(value.as_list(), is_numpy_array);
}

}  // namespace

bool looks_like_optimizer(const Value& value) {
  return value.find("state") != nullptr && value.find("param_groups") != nullptr;
}

bool holds_weights(const Value& value) {
  if (looks_like_optimizer(value) || value.is_tensor()) return false;
  return value.holds_tensors() || is_numpy_array(value) || is_list_of_arrays(value);
}

void find_models(const StateDict& state, Roles& roles) { ModelFinder(state, roles).run(); }

}  // namespace tessera
