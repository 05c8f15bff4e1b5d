#include "fsdp_core/state_dict/optimizer_table.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/fused_adamw.h>
#include <tessera/fsdp/muon.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <tuple>
#include <typeinfo>

#include "fsdp_core/state_dict/group_options.h"

namespace tessera::fsdp {
namespace {

namespace optim = torch::optim;
using Options = optim::OptimizerOptions;
using State = optim::OptimizerParamState;

double number(const Value& value) {
  if (!value.is_number()) fail(Code::kInvalidArgument, "is no number");
  return value.as_real();
}

template <class O>
GroupKey real_key(const char* name, double& (O::*field)()) {
  return {name,
          [field](Options& o) { return Value::real((static_cast<O&>(o).*field)()); },
          [field](Options& o, const Value& v) { (static_cast<O&>(o).*field)() = number(v); },
          {},
          {}};
}

template <class O>
GroupKey bool_key(const char* name, bool& (O::*field)()) {
  return {name,
          [field](Options& o) { return Value::boolean((static_cast<O&>(o).*field)()); },
          [field](Options& o, const Value& v) {
            if (v.kind() != Value::Kind::kBool)
              fail(Code::kInvalidArgument, "is neither True nor False");
            (static_cast<O&>(o).*field)() = v.as_bool();
          },
          {},
          {}};
}

template <class O>
GroupKey betas_key(std::tuple<double, double>& (O::*field)()) {
  return {"betas",
          [field](Options& o) {
            const auto& [first, second] = (static_cast<O&>(o).*field)();
            return Value::list({Value::real(first), Value::real(second)}, Value::Kind::kTuple);
          },
          [field](Options& o, const Value& v) {
            if ((v.kind() != Value::Kind::kTuple && v.kind() != Value::Kind::kList) ||
                v.as_list().size() != 2)
              fail(Code::kInvalidArgument, "is no pair of numbers");
            (static_cast<O&>(o).*field)() = {number(v.as_list()[0]), number(v.as_list()[1])};
          },
          {},
          {}};
}

GroupKey kept(const char* name, Value initial) { return {name, {}, {}, std::move(initial), {}}; }
GroupKey kept_none(const char* name) { return kept(name, Value()); }
GroupKey kept_false(const char* name) { return kept(name, Value::boolean(false)); }
GroupKey never_maximize() {
  return {"maximize", {}, {}, Value::boolean(false), "LibTorch's optimizers only minimise"};
}
GroupKey decoupled(bool yes) {
  return {"decoupled_weight_decay",
          {},
          {},
          Value::boolean(yes),
          yes ? "the checkpoint is Adam's, whose weight decay is part of the gradient, and the "
                "optimizer is AdamW"
              : "the checkpoint is AdamW's, whose weight decay is apart from the gradient, and the "
                "optimizer is Adam"};
}

template <class S>
StateLeaf leaf(const char* name, at::Tensor& (S::*field)(), bool required = true,
               const char* needed_with = "") {
  return {name, [field](State& s) -> at::Tensor& { return (static_cast<S&>(s).*field)(); },
          required, needed_with};
}

StateLeaf fused_leaf(const char* name, at::Tensor FusedAdamWParamState::*field,
                     bool required = true, const char* needed_with = "") {
  return {name,
          [field](State& s) -> at::Tensor& { return static_cast<FusedAdamWParamState&>(s).*field; },
          required, needed_with};
}

template <class S>
void count_steps(OptimizerTable& table) {
  table.step = [](State& s) { return static_cast<double>(static_cast<S&>(s).step()); };
  table.set_step = [](State& s, double step) {
    static_cast<S&>(s).step(static_cast<std::int64_t>(step));
  };
}

template <class O, class S>
OptimizerTable table(const char* name) {
  OptimizerTable out;
  out.with_kept = [](const Options& options, ValueDict keys) -> std::unique_ptr<Options> {
    return std::make_unique<OptionsWithKept<O>>(static_cast<const O&>(options), std::move(keys));
  };
  out.name = std::string("torch::optim::") + name;
  out.python_name = name;
  out.make_state = [] { return std::make_unique<S>(); };
  return out;
}

template <class O>
std::vector<GroupKey> adam_keys(bool is_decoupled) {
  return {real_key<O>("lr", &O::lr),
          betas_key<O>(&O::betas),
          real_key<O>("eps", &O::eps),
          real_key<O>("weight_decay", &O::weight_decay),
          bool_key<O>("amsgrad", &O::amsgrad),
          never_maximize(),
          kept_none("foreach"),
          kept_false("capturable"),
          kept_false("differentiable"),
          kept_none("fused"),
          decoupled(is_decoupled)};
}

template <class O, class S>
OptimizerTable adam(const char* name, bool is_decoupled) {
  OptimizerTable out = table<O, S>(name);
  out.own_group_key = "betas";
  out.group_keys = adam_keys<O>(is_decoupled);
  out.leaves = {leaf<S>("exp_avg", &S::exp_avg), leaf<S>("exp_avg_sq", &S::exp_avg_sq),
                leaf<S>("max_exp_avg_sq", &S::max_exp_avg_sq, false, "amsgrad")};
  count_steps<S>(out);
  return out;
}

OptimizerTable fused_adamw() {
  OptimizerTable out = table<optim::AdamWOptions, FusedAdamWParamState>("AdamW");
  out.name = "tessera::fsdp::FusedAdamW";
  out.own_group_key = "betas";
  out.group_keys = adam_keys<optim::AdamWOptions>(true);
  out.leaves = {
      fused_leaf("exp_avg", &FusedAdamWParamState::exp_avg),
      fused_leaf("exp_avg_sq", &FusedAdamWParamState::exp_avg_sq),
      fused_leaf("max_exp_avg_sq", &FusedAdamWParamState::max_exp_avg_sq, false, "amsgrad")};
  out.step = [](State& s) { return static_cast<FusedAdamWParamState&>(s).step.item<double>(); };
  out.step_tensor = [](State& s) -> const at::Tensor& {
    return static_cast<FusedAdamWParamState&>(s).step;
  };
  out.set_step = [](State& s, double step) {
    auto& state = static_cast<FusedAdamWParamState&>(s);
    state.step = at::full({}, step, state.exp_avg.options().dtype(at::kFloat));
  };
  return out;
}

OptimizerTable sgd() {
  using O = optim::SGDOptions;
  using S = optim::SGDParamState;
  OptimizerTable out = table<O, S>("SGD");
  out.own_group_key = "dampening";
  out.group_keys = {real_key<O>("lr", &O::lr),
                    real_key<O>("momentum", &O::momentum),
                    real_key<O>("dampening", &O::dampening),
                    real_key<O>("weight_decay", &O::weight_decay),
                    bool_key<O>("nesterov", &O::nesterov),
                    never_maximize(),
                    kept_none("foreach"),
                    kept_false("differentiable"),
                    kept_none("fused")};
  out.leaves = {leaf<S>("momentum_buffer", &S::momentum_buffer, false)};
  return out;
}

OptimizerTable adagrad() {
  using O = optim::AdagradOptions;
  using S = optim::AdagradParamState;
  OptimizerTable out = table<O, S>("Adagrad");
  out.own_group_key = "lr_decay";
  out.group_keys = {real_key<O>("lr", &O::lr),
                    real_key<O>("lr_decay", &O::lr_decay),
                    real_key<O>("eps", &O::eps),
                    real_key<O>("weight_decay", &O::weight_decay),
                    real_key<O>("initial_accumulator_value", &O::initial_accumulator_value),
                    kept_none("foreach"),
                    never_maximize(),
                    kept_false("differentiable"),
                    kept_none("fused")};
  out.leaves = {leaf<S>("sum", &S::sum)};
  out.has_state_from_start = true;
  count_steps<S>(out);
  return out;
}

OptimizerTable rmsprop() {
  using O = optim::RMSpropOptions;
  using S = optim::RMSpropParamState;
  OptimizerTable out = table<O, S>("RMSprop");
  out.own_group_key = "alpha";
  out.group_keys = {real_key<O>("lr", &O::lr),
                    real_key<O>("momentum", &O::momentum),
                    real_key<O>("alpha", &O::alpha),
                    real_key<O>("eps", &O::eps),
                    bool_key<O>("centered", &O::centered),
                    real_key<O>("weight_decay", &O::weight_decay),
                    kept_false("capturable"),
                    kept_none("foreach"),
                    never_maximize(),
                    kept_false("differentiable")};
  out.leaves = {leaf<S>("square_avg", &S::square_avg),
                leaf<S>("momentum_buffer", &S::momentum_buffer, false, "momentum"),
                leaf<S>("grad_avg", &S::grad_avg, false, "centered")};
  count_steps<S>(out);
  return out;
}

GroupKey coefficients_key() {
  return {"ns_coefficients",
          [](Options& o) {
            ValueList all;
            for (const double each : static_cast<MuonOptions&>(o).ns_coefficients())
              all.push_back(Value::real(each));
            return Value::list(std::move(all), Value::Kind::kTuple);
          },
          [](Options& o, const Value& v) {
            if ((v.kind() != Value::Kind::kTuple && v.kind() != Value::Kind::kList) ||
                v.as_list().size() != 3)
              fail(Code::kInvalidArgument, "are no three numbers");
            MuonOptions::Coefficients all{};
            for (std::size_t i = 0; i < all.size(); ++i) all[i] = number(v.as_list()[i]);
            static_cast<MuonOptions&>(o).ns_coefficients(all);
          },
          {},
          {}};
}

GroupKey ns_steps_key() {
  return {"ns_steps",
          [](Options& o) { return Value::integer(static_cast<MuonOptions&>(o).ns_steps()); },
          [](Options& o, const Value& v) {
            if (v.kind() != Value::Kind::kInt) fail(Code::kInvalidArgument, "is no whole number");
            static_cast<MuonOptions&>(o).ns_steps(v.as_int());
          },
          {},
          {}};
}

GroupKey adjust_lr_key() {
  return {"adjust_lr_fn",
          [](Options& o) {
            const std::string& name = static_cast<MuonOptions&>(o).adjust_lr_fn();
            return name.empty() ? Value() : Value::string(name);
          },
          [](Options& o, const Value& v) {
            if (!v.is_none() && v.kind() != Value::Kind::kString)
              fail(Code::kInvalidArgument, "is neither None nor a name");
            static_cast<MuonOptions&>(o).adjust_lr_fn(v.is_none() ? "" : v.as_string());
          },
          {},
          {}};
}

OptimizerTable muon() {
  using O = MuonOptions;
  OptimizerTable out = table<O, MuonParamState>("Muon");
  out.name = "tessera::fsdp::Muon";
  out.own_group_key = "ns_steps";
  out.group_keys = {real_key<O>("lr", &O::lr),
                    real_key<O>("weight_decay", &O::weight_decay),
                    real_key<O>("momentum", &O::momentum),
                    bool_key<O>("nesterov", &O::nesterov),
                    coefficients_key(),
                    real_key<O>("eps", &O::eps),
                    ns_steps_key(),
                    adjust_lr_key()};
  out.leaves = {
      {"momentum_buffer",
       [](State& s) -> at::Tensor& { return static_cast<MuonParamState&>(s).momentum_buffer; },
       true, ""}};
  return out;
}

struct Tables {
  OptimizerTable adam = fsdp::adam<optim::AdamOptions, optim::AdamParamState>("Adam", false);
  OptimizerTable adamw = fsdp::adam<optim::AdamWOptions, optim::AdamWParamState>("AdamW", true);
  OptimizerTable fused = fused_adamw(), sgd = fsdp::sgd(), adagrad = fsdp::adagrad(),
                 rmsprop = fsdp::rmsprop(), muon = fsdp::muon();
};

const Tables& tables() {
  static const Tables kTables;
  return kTables;
}

template <class T>
bool is(const optim::Optimizer& optimizer) {
  return dynamic_cast<const T*>(&optimizer) != nullptr;
}

}  // namespace

const GroupKey* OptimizerTable::find_key(std::string_view key) const {
  const auto found = std::ranges::find(group_keys, key, &GroupKey::name);
  return found == group_keys.end() ? nullptr : &*found;
}

const StateLeaf* OptimizerTable::find_leaf(std::string_view name_) const {
  const auto found = std::ranges::find(leaves, name_, &StateLeaf::name);
  return found == leaves.end() ? nullptr : &*found;
}

const OptimizerTable* table_by_group_key(std::string_view key) {
  const Tables& all = tables();
  for (const OptimizerTable* each : {&all.adam, &all.sgd, &all.adagrad, &all.rmsprop, &all.muon})
    if (each->own_group_key == key) return each;
  return nullptr;
}

const OptimizerTable& table_of(const optim::Optimizer& optimizer) {
  const Tables& all = tables();
  if (is<FusedAdamW>(optimizer)) return all.fused;
  if (is<optim::AdamW>(optimizer)) return all.adamw;
  if (is<optim::Adam>(optimizer)) return all.adam;
  if (is<optim::SGD>(optimizer)) return all.sgd;
  if (is<optim::Adagrad>(optimizer)) return all.adagrad;
  if (is<optim::RMSprop>(optimizer)) return all.rmsprop;
  if (is<Muon>(optimizer)) return all.muon;
  if (is<optim::LBFGS>(optimizer))
    fail(Code::kUnsupported,
         "state dict of torch::optim::LBFGS: its history belongs to no single parameter, and on "
         "shards its dot products are of this rank's part alone",
         "use a first-order optimizer");
  fail(Code::kUnsupported,
       fmt::format("state dict of {}: only Adam, AdamW, FusedAdamW, SGD, Adagrad, RMSprop and Muon "
                   "are known",
                   c10::demangle(typeid(optimizer).name())));
}

}  // namespace tessera::fsdp
