// A unit's forward is intercepted however it is called, whatever its signature. Full parameters of
// a unit raise an error outside its forward, so that a call which was not intercepted cannot go
// unnoticed.
#include <tessera/fsdp.h>

#include <sstream>

#include "tests/fsdp/torch_and_catch.h"

namespace fsdp = tessera::fsdp;
using torch::Tensor;

namespace {

/// One rank, so that values can be compared; parameters are gathered into another dtype, without
/// which they would stay where they are. All values here are exact in bfloat16.
fsdp::Options alone() {
  fsdp::Options options;
  options.process_group = fsdp::single_communicator();
  options.reshard_after_forward = true;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.output_dtype = torch::kFloat;
  return options;
}

fsdp::Options alone_as_stored() {
  fsdp::Options options;
  options.process_group = fsdp::single_communicator();
  return options;
}

/// A weight of its own, so that a forward that is not intercepted fails.
struct Scaled : torch::nn::Module {
  Tensor weight;
  Scaled() : weight(register_parameter("weight", torch::arange(1, 5).to(torch::kFloat))) {}
};

struct BlockImpl : Scaled {
  Tensor forward(Tensor x) { return x * weight; }
};
FSDP_MODULE(Block);

struct ConstImpl : Scaled {
  Tensor forward(const Tensor& x) const { return x * weight; }
};
FSDP_MODULE(Const);

struct NoexceptImpl : Scaled {
  Tensor forward(Tensor x) noexcept { return x * weight; }
};
FSDP_MODULE(Noexcept);

struct ManyImpl : Scaled {
  std::tuple<Tensor, std::optional<Tensor>> forward(const Tensor& a, std::optional<Tensor> b,
                                                    std::int64_t k) {
    return {a * weight + (b ? *b : a) * k, b ? std::optional(*b * weight) : std::nullopt};
  }
};
FSDP_MODULE(Many);

struct ContainersImpl : Scaled {
  std::map<std::string, Tensor> forward(std::vector<Tensor> list,
                                        const std::unordered_map<std::string, Tensor>& by_name,
                                        std::pair<Tensor, int> pair, at::TensorList span,
                                        const std::string& prefix) {
    std::map<std::string, Tensor> out;
    out[prefix + "list"] = list.at(0) * weight + list.at(1);
    out[prefix + "map"] = by_name.at("x") * weight;
    out[prefix + "pair"] = pair.first * pair.second * weight;
    out[prefix + "span"] = span[0] * weight;
    return out;
  }
};
FSDP_MODULE(Containers);

struct MoveOnlyImpl : Scaled {
  std::unique_ptr<Tensor> forward(std::unique_ptr<Tensor> x) {
    *x = *x * weight;
    return x;
  }
};
FSDP_MODULE(MoveOnly);

struct OutParamImpl : Scaled {
  void forward(const Tensor& x, Tensor& out, std::vector<Tensor>* more) {
    out = x * weight;
    if (more != nullptr) more->push_back(out * 2);
  }
};
FSDP_MODULE(OutParam);

struct OverloadedImpl : Scaled {
  Tensor forward(Tensor a) { return a * weight; }
  Tensor forward(Tensor a, const Tensor& b) { return a * weight + b; }
  int forward(int a) { return a + static_cast<int>(weight.sum().item<float>()); }
};
FSDP_MODULE(Overloaded);

struct TemplateImpl : Scaled {
  template <class T>
  T forward(T x, double factor = 1) {
    return {x[0] * weight * factor};
  }
};
FSDP_MODULE(Template);

struct DefaultsImpl : Scaled {
  Tensor forward(Tensor x, double scale = 2, std::optional<Tensor> shift = {},
                 bool negate = false) {
    Tensor y = x * weight * scale;
    if (shift) y = y + *shift;
    return negate ? -y : y;
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(2.0)},
                           {2, torch::nn::AnyValue(std::optional<Tensor>())},
                           {3, torch::nn::AnyValue(false)})
};
FSDP_MODULE(Defaults);

struct AllDefaultsImpl : Scaled {
  Tensor forward(double scale = 3) { return weight * scale; }
};
FSDP_MODULE(AllDefaults);

struct BaseImpl : Scaled {
  virtual ~BaseImpl() = default;
  virtual Tensor forward(Tensor x) = 0;
};
struct DerivedImpl : BaseImpl {
  Tensor forward(Tensor x) override { return x * weight; }
};
FSDP_MODULE(Derived);

struct States {
  std::vector<Tensor> hidden;
  Tensor logits;
};
template <class F>
void visit_tensors(States& states, F&& visit) {
  visit(states.hidden);
  visit(states.logits);
}
struct CustomImpl : Scaled {
  States forward(States in) { return {{in.logits * weight}, in.hidden.at(0) * weight}; }
};
FSDP_MODULE(Custom);

struct Opaque {
  Tensor value;
};
struct UnknownImpl : Scaled {
  std::tuple<Tensor, std::vector<Opaque>> forward(Tensor x) { return {x * weight, {}}; }
};
FSDP_MODULE(Unknown);

struct ReferenceImpl : Scaled {
  const Tensor& forward(const Tensor& x) { return last = x * weight; }
  Tensor last;
};
FSDP_MODULE(Reference);

struct NumberImpl : Scaled {
  std::tuple<int, std::string, double> forward(Tensor x) {
    return {3, "three", (x * weight).sum().template item<double>()};
  }
};
FSDP_MODULE(Number);

struct ThrowingImpl : Scaled {
  bool ready = false;
  Tensor forward(Tensor x) {
    const Tensor y = x * weight;
    if (!ready) throw std::logic_error("not ready");
    return y;
  }
};
FSDP_MODULE(Throwing);

struct OwnNamesImpl : Scaled {
  std::string loaded;
  void load(const std::string& path) { loaded = path; }
  bool save(const std::string&, int) { return true; }
  int to(int x) { return x; }
  Tensor forward(Tensor x) { return x * weight; }
};
FSDP_MODULE(OwnNames);

struct CopyableImpl : torch::nn::Cloneable<CopyableImpl> {
  explicit CopyableImpl(std::int64_t n) : size(n) { CopyableImpl::reset(); }
  void reset() override { weight = register_parameter("weight", torch::full({size}, 2.f)); }
  Tensor forward(Tensor x) { return x * weight; }
  std::int64_t size;
  Tensor weight;
};
FSDP_MODULE(Copyable);

bool sharded(const Tensor& full) {
  try {
    (void)(full + 1);
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

const Tensor kX = torch::tensor({1.f, -2.f, 3.f, 0.5f});
Tensor expected() { return kX * torch::tensor({1.f, 2.f, 3.f, 4.f}); }

}  // namespace

TEST_CASE(
    "a unit is intercepted through holder, arrow, Sequential, AnyModule, ModuleList and a base "
    "class") {
  Block block;
  torch::nn::Sequential sequential(block, torch::nn::ReLU());
  torch::nn::AnyModule any(block);
  torch::nn::ModuleList list(block);
  fsdp::fully_shard(block, alone());
  REQUIRE(sharded(block->weight));
  CHECK(block(kX).equal(expected()));
  CHECK(block->forward(kX).equal(expected()));
  CHECK((*block).forward(kX).equal(expected()));
  CHECK(sequential->forward(kX).equal(expected().relu()));
  CHECK(any.forward(kX).equal(expected()));
  CHECK(any.get<Block>()->forward(kX).equal(expected()));
  CHECK(list[0]->as<Block>()->forward(kX).equal(expected()));
  CHECK(sharded(block->weight));

  Derived derived;
  fsdp::fully_shard(derived, alone());
  BaseImpl& base = *derived;
  CHECK(base.forward(kX).equal(expected()));
}

TEST_CASE("gradients of a unit arrive whatever way it is called") {
  Block block;
  torch::nn::Sequential sequential(block, torch::nn::Tanh());
  fsdp::fully_shard(block, alone());
  sequential->forward(kX).sum().backward();
  const Tensor gradient = block->parameters().at(0).grad();
  REQUIRE(gradient.defined());
  CHECK(gradient.allclose(kX * (1 - expected().tanh().pow(2)), 1e-2, 1e-2));
}

TEST_CASE(
    "const and noexcept forwards, and forwards in AnyModule that LibTorch alone would not take") {
  Const constant;
  Noexcept no_throw;
  fsdp::fully_shard(constant, alone());
  fsdp::fully_shard(no_throw, alone());
  CHECK(constant(kX).equal(expected()));
  CHECK(no_throw->forward(kX).equal(expected()));
  CHECK(torch::nn::AnyModule(constant).forward(kX).equal(expected()));
}

TEST_CASE("several arguments, optional tensors and tuples as results") {
  Many many;
  fsdp::fully_shard(many, alone());
  const auto [sum, second] = many->forward(kX, std::nullopt, 2);
  CHECK(sum.equal(expected() + kX * 2));
  CHECK_FALSE(second.has_value());
  const auto [other, product] = many(kX, std::optional<Tensor>(kX), 0);
  CHECK(product->equal(expected()));
  (other.sum() + product->sum()).backward();
  CHECK(many->parameters()[0].grad().equal(2 * kX));
}

TEST_CASE("containers of tensors as arguments and results") {
  Containers containers;
  fsdp::fully_shard(containers, alone());
  const Tensor one = torch::ones({4});
  const std::vector<Tensor> span = {kX};
  auto out = containers->forward({kX, one}, {{"x", kX}}, {kX, 2}, span, "a.");
  CHECK(out.at("a.list").equal(expected() + 1));
  CHECK(out.at("a.map").equal(expected()));
  CHECK(out.at("a.pair").equal(expected() * 2));
  CHECK(out.at("a.span").equal(expected()));
  Tensor total;
  for (auto& [name, value] : out) total = total.defined() ? total + value.sum() : value.sum();
  total.backward();
  CHECK(containers->parameters()[0].grad().equal(5 * kX));
}

TEST_CASE("move-only arguments and results") {
  MoveOnly module;
  fsdp::fully_shard(module, alone());
  CHECK(module->forward(std::make_unique<Tensor>(kX))->equal(expected()));
}

TEST_CASE("arguments by reference are the caller's own") {
  OutParam module;
  fsdp::fully_shard(module, alone());
  Tensor out;
  std::vector<Tensor> more = {kX};
  module->forward(kX, out, &more);
  CHECK(out.to(torch::kFloat).equal(expected()));
  REQUIRE(more.size() == 2);
  CHECK(more[0].is_same(kX));
  CHECK(more[1].to(torch::kFloat).equal(expected() * 2));
  module->forward(kX, out, nullptr);
  CHECK(out.to(torch::kFloat).equal(expected()));
}

TEST_CASE("overloaded and template forwards, by arrow and by call") {
  Overloaded overloaded;
  fsdp::fully_shard(overloaded, alone());
  CHECK(overloaded->forward(kX).equal(expected()));
  CHECK(overloaded(kX, kX).equal(expected() + kX));
  CHECK(overloaded(5) == 15);
  Template generic;
  fsdp::fully_shard(generic, alone());
  std::vector<Tensor> input = {kX};
  CHECK(generic->forward(input).at(0).equal(expected()));
  CHECK(generic(std::array<Tensor, 1>{kX}, 2.0).at(0).equal(expected() * 2));
}

TEST_CASE("default arguments can be left out, by arrow, by call and in a Sequential") {
  Defaults module;
  torch::nn::Sequential sequential(module);
  fsdp::fully_shard(module, alone());
  const Tensor one = torch::ones({4});
  CHECK(module->forward(kX).equal(expected() * 2));
  CHECK(module(kX).equal(expected() * 2));
  CHECK(module->forward(kX, 3).equal(expected() * 3));
  CHECK(module->forward(kX, 3, one).equal(expected() * 3 + 1));
  CHECK(module->forward(kX, 3, {}).equal(expected() * 3));
  CHECK(module->forward(kX, 3, {}, true).equal(expected() * -3));
  CHECK(sequential->forward(kX).equal(expected() * 2));
  CHECK(sequential->forward(kX, 4.0).equal(expected() * 4));
  Defaults same = module;
  CHECK(same->forward(kX).equal(expected() * 2));
  AllDefaults none;
  fsdp::fully_shard(none, alone());
  CHECK(none->forward()[3].item<float>() == 12);
  CHECK(none(1)[3].item<float>() == 4);
}

TEST_CASE("default arguments work unsharded and as a registered child") {
  struct Parent : torch::nn::Module {
    Defaults child{nullptr};
    Parent() { child = register_module("child", Defaults()); }
  } parent;
  CHECK(parent.child->forward(kX).equal(expected() * 2));
  CHECK(parent.named_parameters().contains("child.weight"));
  fsdp::fully_shard(parent.child, alone());
  CHECK(parent.child(kX).equal(expected() * 2));
  CHECK(
      parent.children()[0]->as<Defaults>()->forward(kX, 1, std::nullopt, false).equal(expected()));
}

TEST_CASE("a type of the user's with visit_tensors is looked into") {
  Custom custom;
  fsdp::fully_shard(custom, alone());
  const States out = custom->forward({{kX}, kX});
  CHECK(out.logits.equal(expected()));
  (out.hidden[0].sum() + out.logits.sum()).backward();
  CHECK(custom->parameters()[0].grad().equal(2 * kX));
}

TEST_CASE("results without tensors are no trouble") {
  Number number;
  fsdp::fully_shard(number, alone());
  CHECK(std::get<0>(number(kX)) == 3);
}

TEST_CASE("a result type that is not known is refused in the first forward, by name") {
  Unknown unknown;
  CHECK_NOTHROW(unknown->forward(kX));  // the plain module has no such rule
  fsdp::fully_shard(unknown, alone());
  try {
    unknown->forward(kX);
    FAIL("not refused");
  } catch (const tessera::Error& error) {
    CHECK(error.code() == tessera::Code::kUnsupported);
    CHECK_THAT(error.status().message, Catch::Contains("Opaque"));
    CHECK_THAT(error.status().hint, Catch::Contains("visit_tensors"));
  }
  Reference reference;
  fsdp::fully_shard(reference, alone());
  CHECK_THROWS_WITH(reference->forward(kX), Catch::Contains("reference"));
}

TEST_CASE("after an exception in forward the unit is sharded and runs again") {
  Throwing module;
  fsdp::fully_shard(module, alone());
  CHECK_THROWS_AS(module->forward(kX), std::logic_error);
  CHECK(sharded(module->weight));
  module->ready = true;
  Tensor y = module->forward(kX);
  CHECK(y.equal(expected()));
  y.sum().backward();
  CHECK(module->parameters()[0].grad().equal(kX));
}

TEST_CASE("casts of arguments stay inside the call") {
  struct SeesImpl : Scaled {
    std::vector<torch::Dtype> seen;
    Tensor forward(const Tensor& a, Tensor& b, std::vector<Tensor>& c, std::shared_ptr<Tensor> d) {
      for (const Tensor& each : {a, b, c[0], *d}) seen.push_back(each.scalar_type());
      c.push_back(b);
      return a * weight;
    }
  };
  FSDP_MODULE(Sees);
  Sees module;
  fsdp::Options options = alone();
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.cast_forward_inputs = true;
  fsdp::fully_shard(module, options);
  Tensor a = kX.clone(), b = kX.clone().set_requires_grad(true), c = kX.clone();
  const Tensor a_before = a, b_before = b, c_before = c;
  std::vector<Tensor> list = {c};
  const auto shared = std::make_shared<Tensor>(kX);
  module->forward(a, b, list, shared);
  CHECK(module->seen == std::vector<torch::Dtype>(4, torch::kBFloat16));
  CHECK(a.is_same(a_before));
  CHECK(b.is_same(b_before));
  CHECK(list.at(0).is_same(c_before));
  CHECK(shared->is_same(kX));
}

TEST_CASE("stock modules as units equal the plain ones") {
  const auto same = [](auto plain, auto unit, auto&& call) {
    for (const auto& item : plain->named_parameters()) {
      torch::NoGradGuard no_grad;
      unit->named_parameters()[item.key()].copy_(item.value());
    }
    const Tensor reference = call(plain);
    reference.sum().backward();
    std::map<std::string, Tensor> gradients;
    for (const auto& item : plain->named_parameters()) gradients[item.key()] = item.value().grad();
    fsdp::fully_shard(unit, alone_as_stored());
    const Tensor ours = call(unit);
    CHECK(ours.equal(reference));
    ours.sum().backward();
    for (const auto& item : unit->named_parameters()) {
      REQUIRE(gradients.contains(item.key()));
      REQUIRE(item.value().grad().defined() == gradients[item.key()].defined());
      if (gradients[item.key()].defined())
        CHECK(item.value().grad().equal(gradients[item.key()].flatten()));
    }
  };
  torch::manual_seed(1);
  const Tensor rows = torch::randn({5, 4}), image = torch::randn({2, 3, 6, 6}),
               sequence = torch::randn({7, 2, 4});
  const auto first = [](auto&& tuple) { return std::get<0>(tuple); };
  using namespace torch::nn;

  same(Linear(4, 3), fsdp::Holder<LinearImpl>(4, 3), [&](auto& m) { return m->forward(rows); });
  same(Conv2d(Conv2dOptions(3, 5, 3)), fsdp::Holder<Conv2dImpl>(Conv2dOptions(3, 5, 3)),
       [&](auto& m) { return m(image); });
  same(BatchNorm1d(4), fsdp::Holder<BatchNorm1dImpl>(4), [&](auto& m) { return m(rows).pow(3); });
  same(LayerNorm(LayerNormOptions({4})), fsdp::Holder<LayerNormImpl>(LayerNormOptions({4})),
       [&](auto& m) { return m(rows).pow(3); });
  same(LSTM(4, 6), fsdp::Holder<LSTMImpl>(4, 6),
       [&](auto& m) { return first(m->forward(sequence)); });
  same(LSTM(4, 6), fsdp::Holder<LSTMImpl>(4, 6), [&](auto& m) {
    return first(m(sequence, std::make_tuple(torch::ones({1, 2, 6}), torch::zeros({1, 2, 6}))));
  });
  same(GRU(4, 6), fsdp::Holder<GRUImpl>(4, 6),
       [&](auto& m) { return first(m->forward(sequence, {})); });
  same(LSTM(4, 6), fsdp::Holder<LSTMImpl>(4, 6), [&](auto& m) {
    auto packed = utils::rnn::pack_padded_sequence(sequence, torch::tensor({7, 3}));
    return std::get<0>(m->forward_with_packed_input(packed)).data().clone();
  });
  same(MultiheadAttention(4, 2), fsdp::Holder<MultiheadAttentionImpl>(4, 2),
       [&](auto& m) { return first(m->forward(sequence, sequence, sequence, {}, false)); });
  const TransformerEncoderOptions encoder(TransformerEncoderLayerOptions(4, 2).dropout(0), 2);
  same(TransformerEncoder(encoder), fsdp::Holder<TransformerEncoderImpl>(encoder),
       [&](auto& m) { return m->forward(sequence); });
  same(TransformerEncoder(encoder), fsdp::Holder<TransformerEncoderImpl>(encoder), [&](auto& m) {
    return m(sequence, torch::zeros({7, 7}));
  });
  same(Embedding(9, 4), fsdp::Holder<EmbeddingImpl>(9, 4), [&](auto& m) {
    return m(torch::tensor({1, 8, 1}));
  });
  same(Sequential(Linear(4, 4), ReLU(), Linear(4, 2)),
       fsdp::Holder<SequentialImpl>(Linear(4, 4), ReLU(), Linear(4, 2)),
       [&](auto& m) { return m->forward(rows); });
}

TEST_CASE("a plain stock module is refused with its class") {
  torch::nn::Linear linear(2, 2);
  CHECK_THROWS_WITH(fsdp::fully_shard(linear, alone()), Catch::Contains("torch::nn::LinearImpl"));
}

TEST_CASE("names and casts show the user's class") {
  Block block;
  CHECK_THAT(block->name(), Catch::EndsWith("BlockImpl"));
  CHECK_THAT(block->name(), !Catch::Contains("Hooked"));
  CHECK(fsdp::Holder<torch::nn::LinearImpl>(2, 2)->name() == "torch::nn::LinearImpl");
  std::ostringstream printed;
  printed << torch::nn::Sequential(block, fsdp::Holder<torch::nn::LinearImpl>(2, 3));
  CHECK_THAT(printed.str(),
             Catch::Contains("BlockImpl") && Catch::Contains("Linear(in_features=2"));
  const std::shared_ptr<torch::nn::Module> module = block.ptr();
  CHECK(std::dynamic_pointer_cast<BlockImpl>(module) != nullptr);
  CHECK(module->as<Block>() == block.get());
  CHECK(module->as<BlockImpl>() == block.get());
  const auto made = std::make_shared<fsdp::Module<BlockImpl>>();
  const Block held(made);
  CHECK(held.get() == made.get());
}

TEST_CASE("an unsharded module that can be a unit is cloned as one") {
  Copyable module(4);
  {
    torch::NoGradGuard no_grad;
    module->weight.fill_(5);
  }
  const auto copy = std::dynamic_pointer_cast<fsdp::Module<CopyableImpl>>(module->clone());
  REQUIRE(copy);
  CHECK(copy->weight.equal(module->weight));
  CHECK_FALSE(copy->weight.is_same(module->weight));
  CHECK(copy->parameters()[0].is_same(copy->weight));
  fsdp::fully_shard(copy, alone());
  CHECK(copy->forward(kX).equal(kX * 5));
  CHECK_FALSE(sharded(module->weight));
  fsdp::Holder<torch::nn::LinearImpl> linear(3, 2);
  const auto twin = linear->clone();
  CHECK(dynamic_cast<fsdp::HookPoint*>(twin.get()) != nullptr);
  CHECK(twin->as<torch::nn::Linear>()
            ->forward(torch::ones({1, 3}))
            .equal(linear(torch::ones({1, 3}))));
  const torch::nn::Sequential inside(linear);
  CHECK(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(inside->clone())
            ->forward(torch::ones({1, 3}))
            .equal(linear(torch::ones({1, 3}))));
}

TEST_CASE(
    "clone, to, save and load of a sharded module are refused with the call to make instead") {
  Copyable module(4);
  module->to(torch::kDouble);
  CHECK(module->weight.scalar_type() == torch::kDouble);
  torch::nn::Sequential around(module);
  fsdp::fully_shard(module, alone());
  CHECK_THROWS_WITH(module->clone(), Catch::Contains("clone()") && Catch::Contains("CopyableImpl"));
  CHECK_THROWS_WITH(module->to(torch::kFloat), Catch::Contains("to()"));
  CHECK_THROWS_WITH(module->to(torch::Device(torch::kCPU)), Catch::Contains("to()"));
  CHECK_THROWS_WITH(around->to(torch::kFloat), Catch::Contains("to()"));
  std::stringstream stream;
  CHECK_THROWS_WITH(torch::save(around, stream), Catch::Contains("save()"));
  torch::serialize::InputArchive archive;
  CHECK_THROWS_WITH(module->load(archive), Catch::Contains("load()"));
}

TEST_CASE("methods of the user's named load, save and to stay reachable") {
  OwnNames module;
  module->load("file");
  CHECK(module->loaded == "file");
  CHECK(module->save("file", 1));
  CHECK(module->to(3) == 3);
  static_cast<torch::nn::Module&>(*module).to(torch::kDouble);
  CHECK(module->weight.scalar_type() == torch::kDouble);
  fsdp::fully_shard(module, alone());
  CHECK_THROWS_WITH(static_cast<torch::nn::Module&>(*module).to(torch::kFloat),
                    Catch::Contains("to()"));
  CHECK(module(kX.to(torch::kDouble)).equal(expected()));
}
