// Parameter groups: matched by their members, options from the checkpoint, keys that the class does
// not know.
#include <tessera/state/roles.h>
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"
#include "tests/support/note_text.h"

namespace state_optimizer_groups_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using tessera::Value;

TEST_CASE("two groups keep their members and options, whatever order they come back in") {
  const auto make = [](Odd& model, bool swapped) {
    std::vector<torch::Tensor> first, second;
    for (const auto& item : model->named_parameters())
      (item.key().find("weight") != std::string::npos ? first : second).push_back(item.value());
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(first, std::make_unique<optim::AdamWOptions>(
                                   optim::AdamWOptions(0.25).weight_decay(0.5).betas({0.7, 0.8})));
    groups.emplace_back(second, std::make_unique<optim::AdamWOptions>(
                                    optim::AdamWOptions(0.125).weight_decay(0.0625)));
    if (swapped) std::swap(groups[0], groups[1]);
    return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(3));
  };
  Odd source = make_odd(true), target = make_odd(true);
  auto saved = make(source, false);
  train_odd(source, *saved, 0, 2, 0, 1);
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(source, *saved)});
  auto loaded = make(target, true);
  for (auto& group : loaded->param_groups()) {
    auto& options = static_cast<optim::AdamWOptions&>(group.options());
    options.lr(9).weight_decay(9).betas({0.1, 0.1}).eps(9).amsgrad(true);
  }
  CHECK(checkpoint.load_into(fsdp::state_dict(target, *loaded)).empty());
  const auto options = [&](std::size_t g) -> optim::AdamWOptions& {
    return static_cast<optim::AdamWOptions&>(loaded->param_groups()[g].options());
  };
  CHECK(options(1).lr() == 0.25);
  CHECK(options(1).betas() == std::make_tuple(0.7, 0.8));
  CHECK(options(1).weight_decay() == 0.5);
  CHECK(options(0).lr() == 0.125);
  CHECK(options(0).eps() == 1e-8);
  CHECK_FALSE(options(0).amsgrad());
  train_odd(source, *saved, 2, 4, 0, 1);
  train_odd(target, *loaded, 2, 4, 0, 1);
  for (const auto& item : source->named_parameters())
    CHECK(same_bits(item.value(), target->named_parameters()[item.key()]));
}

TEST_CASE("keys of a group that the class does not know are kept and written back") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.5));
  train_odd(model, optimizer, 0, 1, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const tessera::Path group = {tessera::key_item("optim"), tessera::key_item("param_groups"),
                               tessera::index_item(0)};
  checkpoint.put(tessera::below(group, "initial_lr"), {}, Value::real(0.75));
  checkpoint.put(tessera::below(group, "foreach"), {}, Value::boolean(false));

  Odd other = make_odd(true);
  optim::AdamW target(other->parameters(), optim::AdamWOptions(0.1));
  CHECK(checkpoint.load_into(fsdp::state_dict(other, target)).empty());
  CHECK(static_cast<optim::AdamWOptions&>(target.param_groups()[0].options()).lr() == 0.5);
  const tessera::LiveState again = fsdp::state_dict(other, target);
  CHECK(*find_value(again, "optim.param_groups.0.initial_lr") == Value::real(0.75));
  CHECK(*find_value(again, "optim.param_groups.0.foreach") == Value::boolean(false));
  // torch::optim's own code still sees its options.
  train_odd(other, target, 1, 2, 0, 1);
  std::stringstream archive;
  CHECK_NOTHROW(torch::save(target, archive));
}

TEST_CASE("keys that a checkpoint of an older release lacks keep the optimizer's own value") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.5).eps(0.25));
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  for (const char* key : {"eps", "maximize", "foreach", "capturable", "differentiable", "fused",
                          "decoupled_weight_decay"})
    checkpoint.remove(std::string("optim.param_groups.0.") + key);
  static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(3).eps(0.125);
  CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)).empty());
  const auto& options = static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options());
  CHECK(options.lr() == 0.5);
  CHECK(options.eps() == 0.125);
  const tessera::LiveState again = fsdp::state_dict(model, optimizer);
  CHECK(find_value(again, "optim.param_groups.0.foreach")->is_none());
  CHECK(find_value(again, "optim.param_groups.0.decoupled_weight_decay")->as_bool());
}

TEST_CASE("groups of an optimizer of another class are refused before anything changes") {
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto alone = tessera::single_rank();
  Odd model = make_odd(true), other = make_odd(true);
  const auto of = [](Odd& odd, const std::string& name) -> std::unique_ptr<optim::Optimizer> {
    if (name == "Adagrad") return std::make_unique<optim::Adagrad>(odd->parameters());
    if (name == "RMSprop") return std::make_unique<optim::RMSprop>(odd->parameters());
    if (name == "AdamW") return std::make_unique<optim::AdamW>(odd->parameters());
    return std::make_unique<optim::SGD>(odd->parameters(), optim::SGDOptions(0.5));
  };
  // (Without state, as SGD saves it: state of other leaves is told as such.)
  const auto [from, to, told] = GENERATE(table<std::string, std::string, std::string>({
      {"SGD", "AdamW",
       "optim.param_groups.0 has \"dampening\", as SGD does, and no \"betas\": the optimizer "
       "here is torch::optim::AdamW"},
      {"SGD", "RMSprop", "has \"dampening\", as SGD does, and no \"alpha\""},
      {"AdamW", "SGD", "has \"betas\", as Adam does, and no \"dampening\""},
      {"RMSprop", "AdamW", "has \"alpha\", as RMSprop does, and no \"betas\""},
      {"Adagrad", "SGD", "has \"lr_decay\", as Adagrad does, and no \"dampening\""},
  }));
  CAPTURE(from, to);
  const auto saved = of(model, from);
  tessera::LiveState state = fsdp::state_dict(model, *saved);
  state.remove_if(
      [](const tessera::StateEntry& entry) { return entry.name.starts_with("optim.state."); });
  tessera::save("/run/a", state, *alone, saving);
  const auto loaded = of(other, to);
  train_odd(other, *loaded, 0, 1, 0, 1);
  const torch::Tensor weight = other->inner->a->weight.detach().clone();
  const std::size_t states = loaded->state().size();
  CHECK_THAT(message_of([&] {
               tessera::load("/run/a", fsdp::state_dict(other, *loaded), *alone, loading);
             }),
             Catch::Contains(told) && Catch::Contains("make the optimizer that was saved"));
  CHECK(same_bits(other->inner->a->weight, weight));
  CHECK(loaded->state().size() == states);
  loading.optimizer = tessera::PartPolicy::kSkip;
  CHECK_NOTHROW(tessera::load("/run/a", fsdp::state_dict(other, *loaded), *alone, loading));
  CHECK(loaded->state().size() == states);
}

TEST_CASE("options that a checkpoint lacks are told in the notes of the load") {
  tessera::MemoryFileSystem fs;
  const auto alone = tessera::single_rank();
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.5));
  train_odd(model, optimizer, 0, 1, 0, 1);
  tessera::LiveState state = fsdp::state_dict(model, optimizer);
  state.remove_if([](const tessera::StateEntry& entry) {
    return entry.name == "optim.param_groups.0.lr" || entry.name == "optim.param_groups.0.foreach";
  });
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  tessera::save("/run/a", state, *alone, saving);
  tessera::save("/run/b", fsdp::state_dict(model, optimizer), *alone, saving);
  const auto notes_of = [&](const char* path) {
    std::vector<std::string> notes;
    for (const tessera::Note& note :
         tessera::load(path, fsdp::state_dict(model, optimizer), *alone, loading).notes)
      notes.push_back(tessera::testing::note_code(note) + " " + note.message);
    return notes;
  };
  CHECK(notes_of("/run/a") ==
        std::vector<std::string>{"OP016 group 0 of the optimizer keeps its own \"lr\": "
                                 "optim.param_groups.0 of the checkpoint has none"});
  CHECK(notes_of("/run/b").empty());
}

TEST_CASE("an option that is stored as a tensor of one element is read as a number") {
  tessera::MemoryFileSystem fs;
  const auto alone = tessera::single_rank();
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.5));
  train_odd(model, optimizer, 0, 1, 0, 1);
  float numbers[2] = {0.125F, 0.25F};
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto save_with = [&](const char* path, tessera::Shape shape) {
    tessera::LiveState state = fsdp::state_dict(model, optimizer);
    state.edit([&](tessera::LiveContents& contents) {
      for (tessera::StateEntry& entry : contents.dict.entries) {
        if (entry.name != "optim.param_groups.0.lr") continue;
        entry.value = Value::tensor(static_cast<std::uint32_t>(contents.tensors.size()));
        tessera::LiveTensor live;
        live.spec = {tessera::DType::kFloat32, shape};
        live.pieces.push_back({tessera::Chunk::whole_of(tessera::Box::whole(shape)), numbers, {}});
        contents.tensors.push_back(std::move(live));
      }
    });
    tessera::save(path, state, *alone, saving);
  };
  auto& options = static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options());
  for (const auto& [path, shape] :
       {std::pair("/run/scalar", tessera::Shape()), std::pair("/run/one", tessera::Shape({1}))}) {
    CAPTURE(path);
    save_with(path, shape);
    options.lr(3);
    tessera::load(path, fsdp::state_dict(model, optimizer), *alone, loading);
    CHECK(static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr() == 0.125);
  }
  save_with("/run/two", tessera::Shape({2}));
  CHECK_THROWS_WITH(tessera::load("/run/two", fsdp::state_dict(model, optimizer), *alone, loading),
                    Catch::Contains("\"optim.param_groups.0.lr\"") &&
                        Catch::Contains("expected a value, found float32 [2]"));
}

TEST_CASE("a parameter that no stored group lists is missing, for a class without state too") {
  Odd model = make_odd(true);
  const std::vector<torch::Tensor> all = once_each(model->parameters());
  optim::SGD fewer(std::vector<torch::Tensor>(all.begin() + 1, all.end()), optim::SGDOptions(0.5));
  optim::SGD optimizer(all, optim::SGDOptions(0.25).momentum(0.9));
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, fewer)});
  std::string first;
  for (const auto& item : model->named_parameters())
    if (item.value().is_same(all[0])) first = item.key();
  CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)) ==
        std::vector<std::string>{"optim.param_groups.0.params." + first});
}

TEST_CASE("a load without unknown keys leaves the options where they are") {
  Odd model = make_odd(true);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.5));
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  auto& options = static_cast<optim::SGDOptions&>(optimizer.param_groups()[0].options());
  options.lr(3);
  checkpoint.load_into(fsdp::state_dict(model, optimizer));
  CHECK(&options == &optimizer.param_groups()[0].options());
  CHECK(options.lr() == 0.5);
}

TEST_CASE("a checkpoint of Adam is refused for AdamW and the other way round") {
  Odd model = make_odd(true);
  optim::Adam adam(model->parameters());
  optim::AdamW adamw(model->parameters());
  const Checkpoint coupled = Checkpoint::of({fsdp::state_dict(model, adam)});
  const Checkpoint decoupled = Checkpoint::of({fsdp::state_dict(model, adamw)});
  CHECK_THROWS_WITH(coupled.load_into(fsdp::state_dict(model, adamw)),
                    Catch::Contains("optim.param_groups.0.decoupled_weight_decay") &&
                        Catch::Contains("torch::optim::AdamW") && Catch::Contains("is Adam's"));
  CHECK_THROWS_WITH(decoupled.load_into(fsdp::state_dict(model, adam)),
                    Catch::Contains("is AdamW's"));
  fsdp::FusedAdamW fused(model->parameters());
  CHECK(decoupled.load_into(fsdp::state_dict(model, fused)).empty());
}

TEST_CASE("options that the class cannot have are refused by key") {
  Odd model = make_odd(true);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.5).momentum(0.9));
  const tessera::Path group = {tessera::key_item("optim"), tessera::key_item("param_groups"),
                               tessera::index_item(0)};
  const auto message = [&](const char* key, Value value) {
    Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
    checkpoint.put(tessera::below(group, key), {}, std::move(value));
    return message_of([&] { checkpoint.load_into(fsdp::state_dict(model, optimizer)); });
  };
  CHECK_THAT(message("maximize", Value::boolean(true)),
             Catch::Contains("optim.param_groups.0.maximize is True"));
  CHECK_THAT(message("lr", Value::string("high")),
             Catch::Contains("optim.param_groups.0.lr is no number"));
  CHECK_THAT(message("nesterov", Value::string("yes")), Catch::Contains("nesterov"));
  CHECK(message("lr", Value::integer(1)).empty());
}

TEST_CASE("an optimizer with groups alone is found as one") {
  Odd model = make_odd(true);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.5));
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const tessera::Roles roles = tessera::find_roles(checkpoint.manifest.state);
  REQUIRE(roles.optimizers.size() == 1);
  CHECK(roles.optimizers[0].name == "optim");
}

}  // namespace state_optimizer_groups_test
