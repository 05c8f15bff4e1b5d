// Optimizers by what they keep, where training code puts them, and what follows a weight.
#include "lib/state/known_optimizers.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/parameter_edit.h>

#include <catch2/catch.hpp>

#include "tests/support/note_text.h"

namespace known_optimizers_test {

using namespace tessera;

namespace {

using Names = std::set<std::string, std::less<>>;

Names words(std::string_view text) {
  Names out;
  std::string word;
  for (const char c : std::string(text) + ' ') {
    if (c != ' ') word += c;
    if (c == ' ' && !word.empty()) out.insert(std::exchange(word, ""));
  }
  return out;
}

std::string name_of(std::string_view leaves, std::string_view options = "") {
  const KnownOptimizer* known = recognize_optimizer(words(leaves), words(options));
  return known == nullptr ? "unknown" : std::string(known->name);
}

/// A state dict whose tensors lie apart.
struct Scene {
  Manifest manifest;

  Scene& tensor(const std::vector<std::string>& items, const Shape& shape) {
    StoredTensor stored;
    stored.spec = {DType::kFloat32, shape};
    stored.first_chunk = manifest.chunks.size();
    stored.chunk_count = 1;
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = 1000 * manifest.tensors.size();
    source.length = static_cast<std::uint64_t>(stored.spec.size_bytes());
    manifest.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
    stored.name = dotted(path_of(items));
    const auto index = static_cast<std::uint32_t>(manifest.tensors.size());
    manifest.tensors.push_back(stored);
    return value(items, Value::tensor(index));
  }
  Scene& value(const std::vector<std::string>& items, Value value) {
    const Path path = path_of(items);
    manifest.state.entries.push_back({dotted(path), path, std::move(value)});
    return *this;
  }
  Scene& model(const std::string& root) {
    return tensor({root, "0.weight"}, {4, 3}).tensor({root, "0.bias"}, {4});
  }
  /// Adam's state, by `keys` of the two parameters.
  Scene& adam(const std::vector<std::string>& root, const std::vector<std::string>& keys) {
    const Shape shapes[] = {{4, 3}, {4}};
    for (std::size_t i = 0; i < keys.size(); ++i)
      for (const char* leaf : {"exp_avg", "exp_avg_sq"}) {
        std::vector<std::string> items = root;
        items.insert(items.end(), {"state", keys[i], leaf});
        tensor(items, shapes[i % 2]);
      }
    std::vector<std::string> items = root;
    items.insert(items.end(), {"param_groups", "0", "params"});
    ValueList members;
    for (const std::string& key : keys)
      members.push_back(is_decimal(key) ? Value::integer(std::stoll(key)) : Value::string(key));
    return value(items, Value::list(std::move(members)));
  }
  std::vector<OptimState> optimizers() {
    const Roles roles = find_roles(manifest.state);
    assign_kinds(manifest, roles);
    return canonical_optim_states(manifest, roles);
  }
  const EntryRole role(const std::string& name) const {
    const Roles roles = find_roles(manifest.state);
    for (std::size_t i = 0; i < roles.entries.size(); ++i)
      if (manifest.state.entries[i].name == name) return roles.entries[i];
    FAIL("no " << name);
    return {};
  }
  std::vector<std::string> model_roots() const { return find_roles(manifest.state).model_roots; }
  const Shape& shape(const std::string& name) const { return manifest.find(name)->spec.shape; }

 private:
  static Path path_of(const std::vector<std::string>& items) {
    Path path;
    for (const std::string& item : items)
      path.push_back(is_decimal(item) ? int_key_item(std::stoll(item)) : key_item(item));
    return path;
  }
};

std::vector<std::string> weights_of(const OptimState& optim, const Manifest& manifest) {
  std::vector<std::string> names;
  for (const OptimParameter& p : optim.parameters)
    names.push_back(p.weight == kNoTensor ? "" : std::string(manifest.tensors[p.weight].name));
  return names;
}

/// "0.weight" with two more rows.
ParameterEdit grown() {
  TensorPiece kept, zeros;
  kept.source = 0;
  kept.box = Box::whole({4, 3});
  zeros.box = Box::whole({2, 3});
  zeros.origin = {4, 0};
  return {{{"0.weight", {4, 3}}}, {{"0.weight", {6, 3}, {kept, zeros}}}};
}

bool never(std::uint32_t, std::uint32_t) { return false; }

}  // namespace

TEST_CASE("optimizers of torch.optim are named, with the keys that PyTorch 2.13 writes") {
  const std::string adam =
      "lr betas eps weight_decay amsgrad maximize foreach capturable "
      "differentiable fused decoupled_weight_decay";
  const std::string nadam =
      "lr betas eps weight_decay momentum_decay decoupled_weight_decay "
      "maximize foreach capturable differentiable";
  const std::string radam =
      "lr betas eps weight_decay maximize foreach capturable differentiable "
      "decoupled_weight_decay";
  CHECK(name_of("step exp_avg exp_avg_sq", adam) == "Adam");
  CHECK(name_of("step exp_avg exp_avg_sq max_exp_avg_sq", adam) == "Adam");
  CHECK(name_of("step mu_product exp_avg exp_avg_sq", nadam) == "NAdam");
  CHECK(name_of("step exp_avg exp_avg_sq", radam) == "RAdam");
  CHECK(name_of("step exp_avg exp_avg_sq", "lr betas eps maximize") == "SparseAdam");
  CHECK(name_of("step row_var col_var variance", "lr beta2_decay eps d weight_decay") ==
        "Adafactor");
  CHECK(name_of("momentum_buffer", "lr momentum nesterov ns_steps ns_coefficients") == "Muon");
  CHECK(name_of("momentum_buffer", "lr momentum dampening nesterov") == "SGD with momentum");
  CHECK(name_of("", "lr momentum dampening nesterov") == "SGD");
  CHECK(name_of("func_evals n_iter al d t old_dirs old_stps ro H_diag prev_flat_grad prev_loss",
                "lr max_iter") == "L-BFGS");
}

TEST_CASE("one optimizer is not called by another one's name") {
  CHECK(name_of("exp_avg exp_avg_sq projector", "rank update_proj_gap scale lr betas") == "GaLore");
  CHECK(name_of("exp_avg exp_avg_sq projector", "rank update_proj_gap scale_type") == "APOLLO");
  CHECK(name_of("exp_avg exp_avg_sq GG.0 GG.1 Q.0 Q.1 step", "shampoo_beta") == "SOAP");
  CHECK(name_of("exp_avg exp_avg_slow exp_avg_sq", "alpha") == "AdEMAMix");
  CHECK(name_of("exp_avg exp_avg_sq exp_avg_diff previous_grad", "betas") == "Adan");
  CHECK(name_of("step prev_grad m v n", "lr betas eps weight_decay restart_cond") == "Adan");
  CHECK(name_of("s p0 exp_avg exp_avg_sq", "d_coef") == "Prodigy");
  CHECK(name_of("exp_avg exp_avg_sq last_grad") == "MARS");
  CHECK(name_of("exp_avg exp_avg_sq_row exp_avg_sq_col exp_avg_res_row exp_avg_res_col RMS") ==
        "CAME");
  CHECK(name_of("exp_avg_sq_row exp_avg_sq_col RMS step") == "Adafactor");
  CHECK(name_of("step exp_avg_sq exp_avg_sq_row exp_avg_sq_col RMS projector", "rank scale") ==
        "GaLore with Adafactor");
  CHECK(name_of("s q theta", "alpha gamma") == "RACS");
  CHECK(name_of("accumulator_0 accumulator_1 momentum_buffer") == "SM3");
  CHECK(name_of("pre_cond_0 inv_pre_cond_0 momentum_buffer", "momentum") == "Shampoo");
  CHECK(name_of("Q.0 Q.1 momentum_buffer expressions", "precondition_lr") == "PSGD Kron");
  CHECK(name_of("z exp_avg_sq", "weight_lr_power") == "schedule-free AdamW");
  CHECK(name_of("z", "weight_lr_power") == "schedule-free SGD");
  CHECK(name_of("state1 state2 qmap1 qmap2 absmax1 absmax2 step") == "Adam of bitsandbytes");
  CHECK(name_of("state1 state2 qmap1 qmap2 absmax1 absmax2 unorm_vec step") ==
        "LAMB of bitsandbytes");
  CHECK(name_of("state1 state2 unorm_vec step") == "LAMB of bitsandbytes");
  CHECK(name_of("state1 qmap1 absmax1 unorm_vec step") == "LARS of bitsandbytes");
  CHECK(name_of("state1 state2 gnorm_vec step") == "Adam of bitsandbytes");
  CHECK(name_of("exp_avg exp_avg_sq", "weight_decouple fixed_decay") == "a variant of Adam");
  CHECK(name_of("exp_avg exp_avg_sq my_buffer") == "unknown");
  // The leaves of Adam and of SGD under the options of others (pytorch_optimizer, torch_optimizer).
  CHECK(name_of("exp_avg exp_avg_sq", "lr betas grad_averaging amsgrad") == "NovoGrad");
  CHECK(name_of("exp_avg exp_avg_sq", "lr betas grad_averaging max_grad_norm") == "LAMB");
  CHECK(name_of("exp_avg exp_avg_sq", "lr betas delta wd_ratio nesterov") == "AdamP");
  CHECK(name_of("exp_avg exp_avg_sq", "lr betas eps weight_decay buffer") == "RAdam");
  CHECK(name_of("exp_avg exp_avg_sq", "lr beta foreach") == "MSVAG");
  CHECK(name_of("exp_avg exp_avg_sq projector", "update_proj_gap projection_type") == "Conda");
  CHECK(name_of("momentum_buffer", "lr kappa xi constant") == "AccSGD");
  CHECK(name_of("momentum_buffer.0.9 momentum_buffer.0.0", "lr betas") == "AggMo");
  CHECK(name_of("momentum_buffer", "lr momentum nu") == "QHM");
  // bitsandbytes 0.50: groups of each optimizer have AdEMAMix's options.
  const std::string wrapped =
      "step __bnb_optimizer_quant_state__.state1 __bnb_optimizer_quant_state__.qmap1 "
      "__bnb_optimizer_quant_state__.absmax1 __bnb_optimizer_quant_state__.state2 "
      "__bnb_optimizer_quant_state__.qmap2 __bnb_optimizer_quant_state__.absmax2";
  CHECK(name_of(wrapped, "lr betas alpha t_alpha t_beta3") == "Adam of bitsandbytes");
  CHECK(name_of(wrapped, "lr betas t_alpha three_betas") == "AdEMAMix of bitsandbytes");
  CHECK(name_of(wrapped + " __bnb_optimizer_quant_state__.unorm_vec", "lr betas alpha t_alpha") ==
        "LAMB of bitsandbytes");
}

TEST_CASE("every row is found by its own leaves and options") {
  for (const KnownOptimizer& known : known_optimizers()) {
    Names leaves, options;
    for (std::string word : words(known.leaves)) {
      word = word.substr(0, word.find_first_of(":?"));
      if (word.ends_with('*')) word.back() = '0';
      leaves.insert(word);
    }
    for (const std::string& word : words(known.options))
      if (!word.starts_with('!')) options.insert(word.substr(0, word.find('|')));
    CAPTURE(known.name, known.leaves);
    CHECK(recognize_optimizer(leaves, options) == &known);
  }
}

TEST_CASE("leaves are cut as their optimizer says") {
  const auto cut = [](std::string_view name, std::string_view leaf) {
    for (const KnownOptimizer& known : known_optimizers())
      if (known.name == name) return cut_of_leaf(known, leaf);
    FAIL("no " << name);
    return LeafCut::kOne;
  };
  CHECK(cut("Adam", "exp_avg") == LeafCut::kElementwise);
  CHECK(cut("Adam", "step") == LeafCut::kOne);
  CHECK(cut("Adafactor", "row_var") == LeafCut::kFactored);
  CHECK(cut("Shampoo", "inv_pre_cond_1") == LeafCut::kOpaque);
  CHECK(cut("SOAP", "GG.0") == LeafCut::kOpaque);
  CHECK(cut("Adam of bitsandbytes", "state1") == LeafCut::kBlocks);
}

TEST_CASE("all of a run below one key: the model and the optimizer inside are found") {
  for (const bool groups : {true, false}) {
    CAPTURE(groups);
    Scene scene;
    scene.tensor({"state", "model", "0.weight"}, {4, 3}).tensor({"state", "model", "0.bias"}, {4});
    scene.adam({"state", "optimizers", "AdamW"}, {"0.weight", "0.bias"});
    if (!groups) scene.manifest.state.entries.pop_back();
    const std::vector<OptimState> found = scene.optimizers();
    REQUIRE(found.size() == 1);
    CHECK(found[0].root == "state.optimizers.AdamW");
    CHECK(scene.model_roots() == std::vector<std::string>{"state.model"});
    CHECK(scene.role("state.model.0.bias").fqn == "0.bias");
    CHECK(scene.role("state.optimizers.AdamW.state.0.bias.exp_avg").role == Role::kOptimState);
  }
  Scene by_id;
  by_id.tensor({"state", "model", "0.weight"}, {4, 3}).tensor({"state", "model", "0.bias"}, {4});
  by_id.adam({"state", "optimizers", "AdamW"}, {"0", "1"});
  CHECK(by_id.model_roots() == std::vector<std::string>{"state.model"});
}

TEST_CASE("an averaged copy is no model, and follows its weights") {
  Scene scene;
  scene.model("ema").model("model").adam({"optimizer"}, {"0.weight", "0.bias"});
  CHECK(scene.model_roots() == std::vector<std::string>{"model"});
  CHECK(scene.role("ema.0.weight").role == Role::kOther);
  CHECK(scene.role("ema.0.weight").fqn == "0.weight");
  edit_parameters(scene.manifest, std::vector{grown()}, never);
  for (const char* name : {"model.0.weight", "ema.0.weight", "optimizer.state.0.weight.exp_avg"})
    CHECK(scene.shape(name) == Shape{6, 3});
}

TEST_CASE("two models of one shape: each optimizer has its own, by name") {
  for (const bool ids : {true, false}) {
    CAPTURE(ids);
    const std::vector<std::string> keys =
        ids ? std::vector<std::string>{"0", "1"} : std::vector<std::string>{"0.weight", "0.bias"};
    Scene scene;
    scene.model("netG").model("netD").adam({"optD"}, keys).adam({"optG"}, keys);
    const std::vector<OptimState> found = scene.optimizers();
    REQUIRE(found.size() == 2);
    CHECK(weights_of(found[0], scene.manifest) ==
          std::vector<std::string>{"netD.0.weight", "netD.0.bias"});
    CHECK(weights_of(found[1], scene.manifest) ==
          std::vector<std::string>{"netG.0.weight", "netG.0.bias"});
    for (const OptimState& optim : found) {
      CHECK(optim.issues.empty());
      CHECK(optim.unlisted_weights.empty());
    }
    // Names that say nothing: in order, and said.
    Scene unsaid;
    unsaid.model("one").model("two").adam({"a"}, keys).adam({"b"}, keys);
    const std::vector<OptimState> guessed = unsaid.optimizers();
    CHECK(weights_of(guessed[1], unsaid.manifest)[0] == "two.0.weight");
    REQUIRE(guessed[1].issues.size() == 1);
    CHECK(guessed[1].issues[0].code == Finding::kAmbiguousIds);
    CHECK_THAT(guessed[1].issues[0].message, Catch::Contains("several models"));
  }
}

TEST_CASE("two models of one shape: an optimizer has the one that it stands beside") {
  for (const bool ids : {true, false}) {
    CAPTURE(ids);
    const std::vector<std::string> keys =
        ids ? std::vector<std::string>{"0", "1"} : std::vector<std::string>{"0.weight", "0.bias"};
    Scene scene;
    for (const char* owner : {"gen", "disc"})
      scene.tensor({owner, "model", "0.weight"}, {4, 3}).tensor({owner, "model", "0.bias"}, {4});
    scene.adam({"disc", "optim"}, keys).adam({"gen", "optim"}, keys);
    const std::vector<OptimState> found = scene.optimizers();
    REQUIRE(found.size() == 2);
    CHECK(weights_of(found[0], scene.manifest) ==
          std::vector<std::string>{"disc.model.0.weight", "disc.model.0.bias"});
    CHECK(weights_of(found[1], scene.manifest) ==
          std::vector<std::string>{"gen.model.0.weight", "gen.model.0.bias"});
    for (const OptimState& optim : found) {
      CHECK(optim.issues.empty());
      CHECK(optim.unlisted_weights.empty());
    }
  }
}

TEST_CASE("an optimizer of several models has those that are called like it") {
  Scene scene;  // SAC
  scene.model("policy").model("qf1").model("qf2").model("qf1_target").model("qf2_target");
  scene.adam({"q_optimizer"}, {"0", "1", "2", "3"}).adam({"policy_optimizer"}, {"0", "1"});
  const std::vector<OptimState> found = scene.optimizers();
  REQUIRE(found.size() == 2);
  CHECK(weights_of(found[0], scene.manifest) ==
        std::vector<std::string>{"qf1.0.weight", "qf1.0.bias", "qf2.0.weight", "qf2.0.bias"});
  CHECK(found[0].issues.empty());
  CHECK(weights_of(found[1], scene.manifest) ==
        std::vector<std::string>{"policy.0.weight", "policy.0.bias"});
}

TEST_CASE("optimizers that share a model have a part of it each") {
  // Lightning's GAN: one state dict, a list of optimizers.
  Scene gan;
  for (const char* net : {"generator.", "discriminator."})
    gan.tensor({"state_dict", net + std::string("0.weight")}, {4, 3})
        .tensor({"state_dict", net + std::string("0.bias")}, {4});
  gan.adam({"optimizer_states", "0"}, {"0", "1"}).adam({"optimizer_states", "1"}, {"0", "1"});
  std::vector<OptimState> found = gan.optimizers();
  REQUIRE(found.size() == 2);
  CHECK(weights_of(found[0], gan.manifest) ==
        std::vector<std::string>{"state_dict.generator.0.weight", "state_dict.generator.0.bias"});
  CHECK(weights_of(found[1], gan.manifest) ==
        std::vector<std::string>{"state_dict.discriminator.0.weight",
                                 "state_dict.discriminator.0.bias"});
  for (const OptimState& optim : found) {
    REQUIRE(optim.issues.size() == 1);  // both have these shapes: which is whose is a guess
    CHECK(optim.issues[0].code == Finding::kAmbiguousIds);
    CHECK_FALSE(optim.parameters[0].certain);
  }
  // Other shapes: no guess.
  Scene other;
  other.tensor({"state_dict", "decoder.weight"}, {5, 3})
      .tensor({"state_dict", "decoder.bias"}, {5});
  other.tensor({"state_dict", "critic.weight"}, {4, 3}).tensor({"state_dict", "critic.bias"}, {4});
  other.adam({"optimizer_states", "0"}, {"0", "1"});
  found = other.optimizers();
  CHECK(weights_of(found[0], other.manifest)[0] == "state_dict.critic.weight");
  CHECK(found[0].issues.empty());
}

TEST_CASE("no parameter is given to two optimizers by order") {
  Scene scene;  // two optimizers of layers of one shape, here and there
  for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"})
    scene.tensor({"model", name}, {4, 3});
  const auto one = [&](const char* root) {
    for (const char* key : {"0", "1"}) scene.tensor({root, "state", key, "exp_avg"}, {4, 3});
    scene.value({root, "param_groups", "0", "params"},
                Value::list({Value::integer(0), Value::integer(1)}));
  };
  one("first");
  one("second");
  const std::vector<OptimState> found = scene.optimizers();
  REQUIRE(found.size() == 2);
  std::set<std::string> given;
  for (const OptimState& optim : found)
    for (const std::string& name : weights_of(optim, scene.manifest)) given.insert(name);
  CHECK(given.size() == 4);
  for (const OptimState& optim : found) CHECK_FALSE(optim.parameters[0].certain);
}

TEST_CASE("an optimizer of one parameter has the one that it is called by") {
  Scene scene;  // torchtune's optimizers that step in backward
  for (const char* name : {"norm.weight", "norm.bias", "head.bias"})
    scene.tensor({"model", name}, {4});
  for (const char* name : {"head.bias", "norm.weight", "norm.bias"}) {
    scene.tensor({"optimizer", name, "state", "0", "exp_avg"}, {4});
    scene.value({"optimizer", name, "param_groups", "0", "params"},
                Value::list({Value::integer(0)}));
  }
  for (const OptimState& optim : scene.optimizers()) {
    CAPTURE(optim.root);
    REQUIRE(optim.parameters.size() == 1);
    CHECK("optimizer." + optim.parameters[0].fqn == optim.root);
    CHECK(optim.issues.empty());
    CHECK(optim.unlisted_weights.empty());
  }
}

TEST_CASE("state of an optimizer's own stands beside that of its parameters") {
  Scene scene;
  scene.model("model").tensor({"optimizer", "state", "k"}, {1});  // MADGRAD's step
  scene.tensor({"optimizer", "state", "ema", "short"}, Shape{});
  scene.adam({"optimizer"}, {"0", "1"});
  const OptimState optim = scene.optimizers().at(0);
  CHECK(optim.dialect == OptimDialect::kById);
  REQUIRE(optim.parameters.size() == 2);
  CHECK(optim.parameters[0].fqn == "0.weight");
  CHECK(optim.issues.empty());
  CHECK(scene.role("optimizer.state.k").role == Role::kOptimGroup);
  CHECK(scene.role("optimizer.state.ema.short").role == Role::kOptimGroup);
  edit_parameters(scene.manifest, std::vector{grown()}, never);
  CHECK(scene.shape("optimizer.state.0.exp_avg") == Shape{6, 3});
  Scene named;
  named.model("model").tensor({"optimizer", "state", "k"}, {1});
  named.adam({"optimizer"}, {"0.weight", "0.bias"});
  CHECK(named.optimizers().at(0).parameters.size() == 2);
}

TEST_CASE("tensors beside models that are state dicts are none of theirs, in a run") {
  Scene scene;
  scene.model("actor").model("critic");
  scene.tensor({"replay"}, {100, 3}).tensor({"fixed_noise"}, {8, 3});
  scene.tensor({"dino_loss", "center"}, {1, 3});
  Scene weights_alone = scene;
  scene.adam({"actor_opt"}, {"0", "1"}).adam({"critic_opt"}, {"0", "1"});
  CHECK(scene.role("actor.0.weight").role == Role::kModel);
  for (const char* name : {"replay", "fixed_noise", "dino_loss.center"})
    CHECK(scene.role(name).role == Role::kOther);
  CHECK(weights_alone.role("fixed_noise").role == Role::kModel);
}

TEST_CASE("models and optimizers that are numbered go together by their numbers") {
  const std::vector<std::string> ids = {"0", "1"}, names = {"0.weight", "0.bias"};
  for (const auto& keys : {ids, names}) {
    CAPTURE(keys);
    Scene lists;
    for (const char* at : {"0", "1", "2"})
      lists.tensor({"models", at, "0.weight"}, {4, 3}).tensor({"models", at, "0.bias"}, {4});
    for (const char* at : {"0", "1", "2"}) lists.adam({"optimizers", at}, keys);
    std::vector<OptimState> found = lists.optimizers();
    REQUIRE(found.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(weights_of(found[i], lists.manifest)[0] == fmt::format("models.{}.0.weight", i));
      CHECK(found[i].issues.empty());
      CHECK(found[i].unlisted_weights.empty());
    }
    Scene accelerate;  // the first ones have no number
    accelerate.model("model").model("model_1").adam({"optimizer_1"}, keys);
    accelerate.adam({"optimizer"}, keys);
    found = accelerate.optimizers();
    CHECK(accelerate.role("model_1.0.bias").role == Role::kModel);
    CHECK(weights_of(found[0], accelerate.manifest)[0] == "model_1.0.weight");
    CHECK(weights_of(found[1], accelerate.manifest)[0] == "model.0.weight");
    for (const OptimState& optim : found) CHECK(optim.issues.empty());
  }
}

TEST_CASE("one optimizer of several models has the parameters of each") {
  Scene scene;
  scene.model("model").tensor({"model_1", "0.weight"}, {2, 4}).tensor({"model_1", "0.bias"}, {2});
  const Shape shapes[] = {{4, 3}, {4}, {2, 4}, {2}};
  ValueList ids;
  for (std::size_t i = 0; i < std::size(shapes); ++i) {
    for (const char* leaf : {"exp_avg", "exp_avg_sq"})
      scene.tensor({"optimizer", "state", std::to_string(i), leaf}, shapes[i]);
    ids.push_back(Value::integer(static_cast<std::int64_t>(i)));
  }
  scene.value({"optimizer", "param_groups", "0", "params"}, Value::list(std::move(ids)));
  const std::vector<OptimState> found = scene.optimizers();
  REQUIRE(found.size() == 1);
  CHECK(found[0].issues.empty());
  CHECK(weights_of(found[0], scene.manifest) ==
        std::vector<std::string>{"model.0.weight", "model.0.bias", "model_1.0.weight",
                                 "model_1.0.bias"});
  CHECK(found[0].parameters[2].fqn == "model_1.0.weight");
}

TEST_CASE("a tensor that an optimizer trains by itself is a parameter") {
  for (const Shape& shape : {Shape{}, Shape{1}})
    for (const char* name : {"log_alpha", "alpha"}) {
      CAPTURE(shape.to_string(), name);
      Scene sac;
      sac.model("actor").model("critic").tensor({"critic", "1.bias"}, {1});
      sac.tensor({name}, shape).tensor({"replay"}, {100, 3});
      sac.adam({"actor_optimizer"}, {"0", "1"});
      sac.tensor({"alpha_optimizer", "state", "0", "exp_avg"}, shape);
      sac.tensor({"alpha_optimizer", "state", "0", "exp_avg_sq"}, shape);
      sac.value({"alpha_optimizer", "param_groups", "0", "params"},
                Value::list({Value::integer(0)}));
      const std::vector<OptimState> found = sac.optimizers();
      REQUIRE(found.size() == 2);
      CHECK(weights_of(found[1], sac.manifest) == std::vector<std::string>{name});
      CHECK(found[1].issues.empty());
      CHECK(found[1].parameters[0].certain);
      CHECK(sac.role(name).role == Role::kModel);
      CHECK(sac.role("replay").role == Role::kOther);
    }
  // Nothing says that it is the tensor beside the models, or that it is not.
  Scene unsaid;
  unsaid.model("actor").model("critic").tensor({"critic", "1.bias"}, {1}).tensor({"tau"}, {1});
  unsaid.adam({"actor_optimizer"}, {"0", "1"});
  unsaid.tensor({"third", "state", "0", "exp_avg"}, {1});
  unsaid.value({"third", "param_groups", "0", "params"}, Value::list({Value::integer(0)}));
  const std::vector<OptimState> found = unsaid.optimizers();
  CHECK_FALSE(found[1].parameters[0].certain);
  CHECK_FALSE(found[1].issues.empty());
}

TEST_CASE("running statistics beside a run's models are none of them") {
  for (const auto& words :
       {std::vector<std::string>{"mean", "var", "count"},
        std::vector<std::string>{"running_mean", "running_variance", "current_count"}}) {
    Scene ppo;
    ppo.model("agent").adam({"optimizer"}, {"0", "1"});
    for (const std::string& word : words) ppo.tensor({"obs_rms", word}, {5});
    CHECK(ppo.role("agent.0.weight").role == Role::kModel);
    for (const std::string& word : words) CHECK(ppo.role("obs_rms." + word).role == Role::kOther);
  }
  Scene layer;  // a mean among other things is a model's
  layer.model("agent").adam({"optimizer"}, {"0", "1"});
  layer.tensor({"norm", "mean"}, {5}).tensor({"norm", "scale"}, {5});
  CHECK(layer.role("norm.mean").role == Role::kModel);
  Scene alone;  // weights without a run keep all they have
  alone.model("agent").tensor({"obs_rms", "mean"}, {5}).tensor({"obs_rms", "var"}, {5});
  CHECK(alone.role("obs_rms.mean").role == Role::kModel);
}

TEST_CASE("what optimizers of one model leave alone is said once") {
  Scene scene;
  for (const char* net : {"G.", "D."})
    scene.tensor({"model", net + std::string("weight")}, {4, 3})
        .tensor({"model", net + std::string("bias")}, {4});
  scene.tensor({"model", "frozen.weight"}, {7, 7});
  scene.adam({"optimizer_0"}, {"G.weight", "G.bias"}).adam({"optimizer_1"}, {"D.weight", "D.bias"});
  const std::vector<OptimState> found = scene.optimizers();
  REQUIRE(found.size() == 2);
  CHECK(found[0].unlisted_weights == std::vector<std::string>{"frozen.weight"});
  CHECK(found[1].unlisted_weights.empty());
}

TEST_CASE("counters of the run beside weights at the top are none of them") {
  Scene scene;
  scene.tensor({"0.weight"}, {4, 3}).tensor({"0.bias"}, {4}).tensor({"0.running_mean"}, {4});
  scene.tensor({"train_state", "loss"}, Shape{}).tensor({"loss"}, Shape{});
  scene.adam({"optimizer"}, {"0.weight", "0.bias"});
  scene.tensor({"tokens_seen"}, Shape{});  // a buffer
  CHECK(scene.role("tokens_seen").role == Role::kModel);
  CHECK(scene.role("0.running_mean").role == Role::kModel);
  CHECK(scene.role("train_state.loss").role == Role::kOther);
  CHECK(scene.role("loss").role == Role::kOther);
  Scene alone;
  alone.tensor({"0.weight"}, {4, 3}).tensor({"train_state", "loss"}, Shape{});
  alone.tensor({"0.weight.exp_avg"}, {4, 3});
  CHECK(alone.role("0.weight").role == Role::kModel);
  CHECK(alone.role("train_state.loss").role == Role::kOther);
  CHECK(alone.role("0.weight.exp_avg").role == Role::kOther);
}

TEST_CASE("rows and columns of a projected gradient say nothing of the parameter's shape") {
  Scene scene;  // GaLore's Adafactor: groups of vectors and of projected matrices
  scene.model("model");
  scene.tensor({"optim", "state", "0", "exp_avg_sq"}, {4});
  scene.tensor({"optim", "state", "1", "exp_avg_sq_row"}, {4});
  scene.tensor({"optim", "state", "1", "exp_avg_sq_col"}, {2});
  scene.tensor({"optim", "state", "1", "projector"}, {3, 2});
  scene.value({"optim", "param_groups", "0", "params"}, Value::list({Value::integer(0)}));
  scene.value({"optim", "param_groups", "1", "rank"}, Value::integer(2));
  scene.value({"optim", "param_groups", "1", "params"}, Value::list({Value::integer(1)}));
  const OptimState optim = scene.optimizers().at(0);
  CHECK(optim.kind == "GaLore with Adafactor");
  CHECK(optim.issues.empty());
  CHECK(weights_of(optim, scene.manifest) ==
        std::vector<std::string>{"model.0.bias", "model.0.weight"});
}

TEST_CASE("ids of state in other shapes are the parameters in order") {
  Scene scene;
  scene.model("model");
  scene.tensor({"optim", "state", "0", "row_var"}, {4, 1});
  scene.tensor({"optim", "state", "0", "col_var"}, {1, 3});
  scene.tensor({"optim", "state", "1", "variance"}, {4});
  scene.value({"optim", "param_groups", "0", "beta2_decay"}, Value::real(-0.8));
  scene.value({"optim", "param_groups", "0", "params"},
              Value::list({Value::integer(0), Value::integer(1)}));
  OptimState optim = scene.optimizers().at(0);
  CHECK(optim.kind == "Adafactor");
  CHECK(optim.issues.empty());
  CHECK(optim.parameters[0].fqn == "0.weight");
  CHECK(optim.parameters[0].certain);
  Scene strange;  // of an optimizer that no table has
  strange.model("model");
  strange.tensor({"optim", "state", "0", "sketch"}, {7, 2});
  strange.tensor({"optim", "state", "1", "sketch"}, {7});
  strange.value({"optim", "param_groups", "0", "params"},
                Value::list({Value::integer(0), Value::integer(1)}));
  optim = strange.optimizers().at(0);
  CHECK(optim.kind == "unknown");
  CHECK(optim.issues.empty());
  CHECK(optim.parameters[1].fqn == "0.bias");
}

TEST_CASE("state that cannot be cut with its weight is refused, or left out where that is asked") {
  // A basis that happens to have the weight's shape is not cut as the weight is.
  Scene square;
  square.tensor({"model", "0.weight"}, {4, 3});
  square.tensor({"optim", "state", "0.weight", "pre_cond_0"}, {4, 3});
  square.tensor({"optim", "state", "0.weight", "inv_pre_cond_0"}, {4, 3});
  square.tensor({"optim", "state", "0.weight", "momentum_buffer"}, {4, 3});
  square.value({"optim", "param_groups", "0", "params"}, Value::list({Value::string("0.weight")}));
  Scene dropped = square;
  try {
    edit_parameters(square.manifest, std::vector{grown()}, never);
    FAIL("it was cut");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK_THAT(error.what(), Catch::Contains("pre_cond_0") && Catch::Contains("Shampoo"));
    CHECK_THAT(error.status().hint, Catch::Contains("--optim drop"));
  }
  const std::vector<Note> notes =
      edit_parameters(dropped.manifest, std::vector{grown()}, never, OptimPolicy::kDrop);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0].message, Catch::Contains("0.weight") && Catch::Contains("Shampoo"));
  CHECK(dropped.shape("model.0.weight") == Shape{6, 3});
  CHECK(dropped.manifest.state.entries.size() == 2);  // the weight and the group
  CHECK(dropped.manifest.left_out.size() == 3);
}

}  // namespace known_optimizers_test
