// A unit's forward is intercepted however it is called, whatever its signature. Full parameters of
// a unit raise an error outside its forward, so that a call which was not intercepted cannot go
// unnoticed.
#include "tests/fsdp/interception_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_interception_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::interception;

namespace {

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

}  // namespace setup_interception_test
