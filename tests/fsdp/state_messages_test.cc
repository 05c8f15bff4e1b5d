// The messages that docs/state_dicts.md shows are those that real saves and loads give.
#include <tessera/base/error.h>

#include <fstream>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_messages_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using tessera::LiveState;

namespace {

std::string on_one_line(std::istream& in) {
  std::string out;
  for (std::string word; in >> word;) out += (out.empty() ? "" : " ") + word;
  return out;
}

class Scene {
 public:
  /// Trained for a step: what is saved.
  Scene() { train(model, *adamw); }
  static void train(Odd& net, optim::Optimizer& optimizer) {
    odd_loss(net, 0, 0, 1).backward();
    optimizer.step();
  }
  std::string path() const { return folder_ / "step_2"; }

  /// Saves the trained job, as `edit` leaves its state.
  void save(const std::function<void(LiveState&)>& edit = {}) {
    LiveState state = fsdp::state_dict(model, *adamw);
    if (edit) edit(state);
    tessera::SaveOptions options;
    options.force = true;
    tessera::save(path(), state, *alone_, options);
  }
  void load(const LiveState& state) const { tessera::load(path(), state, *alone_); }
  void load() const { load(fsdp::state_dict(model, *adamw)); }

  /// What `f` throws, with its hint, stands in the page.
  void check_shown(const std::function<void()>& f) const {
    std::string message = "nothing was thrown";
    try {
      f();
    } catch (const tessera::Error& error) {
      message = std::string(error.what()) + "\n" + error.status().hint;
    }
    const std::string folder = folder_ / "";
    for (std::size_t at = 0; (at = message.find(folder)) != std::string::npos;)
      message.replace(at, folder.size(), "run/");
    INFO(message);
    std::istringstream words(message);
    std::ifstream page(std::string(TESSERA_SOURCE_DIR) + "/docs/state_dicts.md");
    CHECK(on_one_line(page).find(on_one_line(words)) != std::string::npos);
  }

  Odd model = make_odd(true);
  std::unique_ptr<optim::AdamW> adamw = std::make_unique<optim::AdamW>(model->parameters());

 private:
  ScratchFolder folder_;
  std::unique_ptr<tessera::RankGroup> alone_ = tessera::single_rank();
};

void remove(LiveState& state, const std::string& name) {
  state.remove_if([&](const auto& entry) { return entry.name == name; });
}

}  // namespace

TEST_CASE("the documented messages of a checkpoint that does not fit are the real ones") {
  Scene scene;
  scene.save();
  scene.check_shown([&] {
    Odd wider = make_odd(true);
    wider->inner->a = wider->inner->replace_module("a", torch::nn::Linear(6, 8));
    scene.load(fsdp::state_dict(wider));
  });
  scene.check_shown([&] {
    optim::Adam adam(scene.model->parameters());
    scene.load(fsdp::state_dict(scene.model, adam));
  });
  scene.check_shown([&] {
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(scene.model->inner->a->parameters());
    groups.emplace_back(once_each(scene.model->parameters()));
    auto& rest = groups.back().params();
    std::erase_if(rest, [&](const torch::Tensor& parameter) {
      return parameter.is_same(scene.model->inner->a->weight) ||
             parameter.is_same(scene.model->inner->a->bias);
    });
    const optim::AdamWOptions options(1e-3);
    for (auto& group : groups) group.set_options(std::make_unique<optim::AdamWOptions>(options));
    static_cast<optim::AdamWOptions&>(groups[1].options()).lr(0.5);
    const auto split = std::make_unique<optim::AdamW>(groups, options);
    std::swap(scene.adamw->param_groups(), split->param_groups());
    std::swap(scene.adamw->state(), split->state());
    scene.save();
    std::swap(scene.adamw->param_groups(), split->param_groups());
    std::swap(scene.adamw->state(), split->state());
    scene.load();
  });
}

TEST_CASE("the documented messages of damaged state are the real ones") {
  Scene scene;
  scene.save([](LiveState& state) { remove(state, "optim.state.inner.b.weight.exp_avg_sq"); });
  scene.check_shown([&] { scene.load(); });
  scene.save([](LiveState& state) {
    const std::string name = "optim.state.inner.a.bias.step";
    const tessera::Path path = state.dict().find(name)->path;
    remove(state, name);
    state.add_value(path, tessera::Value::integer(16777217));
  });
  scene.check_shown([&] { scene.load(); });
  std::vector<float> other(11 * 6, 0.5f);
  scene.save([&](LiveState& state) {
    state.edit([&](tessera::LiveContents& contents) {
      const auto* second = contents.dict.find("model.head.weight2");
      contents.tensors[second->value.tensor_index()].pieces[0].data = other.data();
    });
  });
  scene.check_shown([&] { scene.load(); });
}

TEST_CASE("the documented messages of optimizers that do not fit are the real ones") {
  Scene scene;
  scene.check_shown([&] {
    Odd model = make_odd(true);
    optim::AdamW early(model->inner->parameters());
    shard_odd(model, {});
    fsdp::state_dict(model, early);
  });
  scene.check_shown([&] {
    fsdp::run_threads(3, [&](fsdp::World& world) {
      fsdp::Options options;
      options.mesh = world.mesh();
      Odd model = make_odd(true);
      shard_odd(model, options);
      optim::AdamW optimizer(model->parameters());
      train_odd(model, optimizer, 0, 2, world.rank(), 3);
      if (world.rank() == 2)
        static_cast<optim::AdamWParamState&>(
            *optimizer.state().at(model->inner->parameters()[0].unsafeGetTensorImpl()))
            .step(7);
      tessera::save(scene.path(), fsdp::state_dict(model, optimizer), world.ranks());
    });
  });
}

}  // namespace state_messages_test
