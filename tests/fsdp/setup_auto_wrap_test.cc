// Which modules auto_wrap makes units, and what it refuses before anything is sharded.
#include <tessera/fsdp.h>

#include "fsdp_core/setup/fqn_glob.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_auto_wrap_test {

namespace fsdp = tessera::fsdp;
using fsdp::WrapPolicy;
using torch::Tensor;
using Names = std::vector<std::string>;

namespace {

fsdp::Options alone() {
  fsdp::Options options;
  options.process_group = fsdp::single_communicator();
  return options;
}

struct AttentionImpl : torch::nn::Module {
  fsdp::Holder<torch::nn::LinearImpl> in, out;
  AttentionImpl()
      : in(register_module("in", fsdp::Holder<torch::nn::LinearImpl>(4, 4))),
        out(register_module("out", fsdp::Holder<torch::nn::LinearImpl>(4, 4))) {}
  Tensor forward(Tensor x) { return out(torch::relu(in(x))); }
};
FSDP_MODULE(Attention);

struct LayerImpl : torch::nn::Module {
  Attention attention{nullptr};
  torch::nn::Linear mlp{nullptr};
  LayerImpl() {
    attention = register_module("attention", Attention());
    mlp = register_module("mlp", torch::nn::Linear(4, 4));
  }
  Tensor forward(Tensor x) { return x + mlp(attention(x)); }
};
FSDP_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  fsdp::Holder<torch::nn::LinearImpl> head{nullptr};
  NetImpl() {
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
    register_module("layers", layers);
    head = register_module("head", fsdp::Holder<torch::nn::LinearImpl>(4, 3));
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
};
FSDP_MODULE(Net);

Names unit_names(torch::nn::Module& root) {
  Names names;
  for (const auto& item : root.named_modules())
    if (const auto* point = dynamic_cast<fsdp::HookPoint*>(item.value().get());
        point != nullptr && point->unit)
      names.push_back(item.key());
  return names;
}

Names wrap(Net& net, const WrapPolicy& policy, const fsdp::Options& options = alone()) {
  return fsdp::auto_wrap(net, policy, options);
}

}  // namespace

TEST_CASE("FQN globs match within and across components") {
  const auto matches = fsdp::fqn_matches;
  CHECK(matches("layers.*", "layers.0"));
  CHECK_FALSE(matches("layers.*", "layers.0.mlp"));
  CHECK_FALSE(matches("layers.*", "layers"));
  CHECK(matches("layers.*.mlp", "layers.11.mlp"));
  CHECK(matches("layers.**", "layers.0.mlp"));
  CHECK(matches("**", "a.b.c"));
  CHECK(matches("**.mlp", "layers.0.mlp"));
  CHECK(matches("**.mlp", "mlp"));
  CHECK_FALSE(matches("**.mlp", "layers.0.xmlp"));
  CHECK(matches("a.**.b", "a.b"));
  CHECK(matches("a.**.b", "a.x.y.b"));
  CHECK_FALSE(matches("a.**.b", "ab"));
  CHECK(matches("layer?", "layer1"));
  CHECK_FALSE(matches("layer?1", "layer.1"));
  CHECK(matches("a*c*e", "abcde"));
  CHECK_FALSE(matches("a*c*e", "abcd"));
  CHECK(matches("", ""));
  CHECK_FALSE(matches("", "a"));
  CHECK_FALSE(matches("head", "head.weight"));
}

TEST_CASE("auto_wrap by name, type and predicate: children before parents, the root last") {
  Net net;
  const auto layer_by_predicate = [](const WrapPolicy::Candidate& candidate) {
    return candidate.class_name.find("LayerImpl") != std::string::npos;
  };
  const auto [policy, names] = GENERATE_COPY(table<WrapPolicy, Names>({
      {WrapPolicy::names({"layers.*"}), {"layers.0", "layers.1", ""}},
      {WrapPolicy::names({"**.attention", "head"}),
       {"layers.0.attention", "layers.1.attention", "head", ""}},
      {WrapPolicy::names({}), {""}},
      {WrapPolicy::types<LayerImpl>(), {"layers.0", "layers.1", ""}},
      {WrapPolicy::types<Layer, Attention>(),
       {"layers.0.attention", "layers.0", "layers.1.attention", "layers.1", ""}},
      {WrapPolicy::predicate(layer_by_predicate), {"layers.0", "layers.1", ""}},
      {WrapPolicy::any_of({WrapPolicy::names({"head"}), WrapPolicy::types<AttentionImpl>()}),
       {"layers.0.attention", "layers.1.attention", "head", ""}},
      {WrapPolicy::always(),
       {"layers.0.attention.in", "layers.0.attention.out", "layers.0.attention", "layers.0",
        "layers.1.attention.in", "layers.1.attention.out", "layers.1.attention", "layers.1", "head",
        ""}},
  }));
  const Tensor x = torch::randn({2, 4}), plain = net->forward(x);
  Names before, after;
  for (const auto& item : net->named_parameters()) before.push_back(item.key());
  const Names made = wrap(net, policy);
  CHECK(made == names);
  for (const auto& item : net->named_parameters()) after.push_back(item.key());
  CHECK(before == after);
  Names marked = unit_names(*net), sorted = made;
  std::ranges::sort(marked);
  std::ranges::sort(sorted);
  CHECK(marked == sorted);
  CHECK(net->forward(x).equal(plain));
}

TEST_CASE("auto_wrap by instance") {
  Net net;
  CHECK(wrap(net, WrapPolicy::instances({net->head.ptr(), net->layers[1]})) ==
        Names{"layers.1", "head", ""});
}

TEST_CASE("auto_wrap by size counts what no unit owns yet and passes over what cannot be a unit") {
  // attention.in, .out and mlp have 20 elements each, head 15.
  const auto [min, names] = GENERATE(table<std::int64_t, Names>({
      {100, {""}},
      {60, {"layers.0", "layers.1", ""}},
      {40, {"layers.0.attention", "layers.1.attention", ""}},
      {20,
       {"layers.0.attention.in", "layers.0.attention.out", "layers.0", "layers.1.attention.in",
        "layers.1.attention.out", "layers.1", ""}},
      {15,
       {"layers.0.attention.in", "layers.0.attention.out", "layers.0", "layers.1.attention.in",
        "layers.1.attention.out", "layers.1", "head", ""}},
  }));
  Net net;
  CHECK(wrap(net, WrapPolicy::size(min)) == names);
}

TEST_CASE("the children that MultiheadAttention calls by itself are never units") {
  struct ModelImpl : torch::nn::Module {
    fsdp::Holder<torch::nn::MultiheadAttentionImpl> attention{nullptr};
    ModelImpl() {
      attention =
          register_module("attention", fsdp::Holder<torch::nn::MultiheadAttentionImpl>(4, 2));
    }
    Tensor forward(Tensor x) { return std::get<0>(attention->forward(x, x, x)); }
  };
  FSDP_MODULE(Model);
  Model model;
  const Tensor x = torch::randn({3, 1, 4}), plain = model->forward(x);
  CHECK(fsdp::auto_wrap(model, WrapPolicy::names({"**"}), alone()) == Names{"attention", ""});
  CHECK(model->forward(x).equal(plain));
}

TEST_CASE("a policy can give a module options of its own") {
  Net net;
  std::vector<std::string> asked;
  const WrapPolicy policy(
      [&](const WrapPolicy::Candidate& candidate, const fsdp::Options& options) {
        asked.push_back(candidate.fqn);
        if (candidate.fqn != "head") return std::optional<fsdp::Options>();
        fsdp::Options own = options;
        own.mixed_precision.param_dtype = torch::kBFloat16;
        own.mixed_precision.cast_forward_inputs = true;
        return std::optional(own);
      });
  wrap(net, policy);
  CHECK(net->forward(torch::randn({2, 4})).scalar_type() == torch::kBFloat16);
  CHECK(std::ranges::find(asked, "layers") == asked.end());
  CHECK(std::ranges::find(asked, "") == asked.end());
  CHECK(std::ranges::find(asked, "layers.0.mlp") != asked.end());
}

TEST_CASE("a policy that names what cannot be intercepted is refused before anything is sharded") {
  Net net;
  try {
    wrap(net, WrapPolicy::names({"layers.*", "layers.1.mlp"}));
    FAIL("not refused");
  } catch (const tessera::Error& error) {
    CHECK_THAT(error.status().message,
               Catch::Contains("layers.1.mlp") && Catch::Contains("torch::nn::LinearImpl"));
    CHECK_THAT(error.status().hint, Catch::Contains("fsdp::Holder"));
  }
  CHECK(unit_names(*net).empty());
  torch::nn::Sequential plain;
  plain->push_back(Layer());
  CHECK_THROWS_WITH(fsdp::auto_wrap(plain, WrapPolicy::types<LayerImpl>(), alone()),
                    Catch::Contains("root module") && Catch::Contains("Sequential"));
  CHECK(unit_names(*plain).empty());
}

TEST_CASE("a module that is a unit already is refused by name") {
  Net net;
  fsdp::fully_shard(net->head, alone());
  CHECK_THROWS_WITH(wrap(net, WrapPolicy::types<LayerImpl>()), Catch::Contains("\"head\""));
  CHECK(unit_names(*net) == Names{"head"});
}

TEST_CASE("ignored modules and what is below them are skipped") {
  Net net;
  fsdp::Options options = alone();
  options.ignored_modules = {net->layers[0]};
  options.ignored_parameters = {net->head->weight};
  CHECK(wrap(net, WrapPolicy::always(), options) ==
        Names{"layers.1.attention.in", "layers.1.attention.out", "layers.1.attention", "layers.1",
              "head", ""});
  CHECK(net->head->weight.dim() == 2);
  CHECK(net->layers[0]->parameters()[0].dim() == 2);
  const Tensor x = torch::randn({2, 4});
  CHECK(net->forward(x).size(1) == 3);
}

TEST_CASE("a shared module is one unit") {
  struct TwiceImpl : torch::nn::Module {
    Layer a{nullptr}, b{nullptr};
    TwiceImpl() {
      a = register_module("a", Layer());
      b = register_module("b", a.ptr());
    }
    Tensor forward(Tensor x) { return b(a(x)); }
  };
  FSDP_MODULE(Twice);
  Twice twice;
  const Tensor x = torch::randn({2, 4}), plain = twice(x);
  CHECK(fsdp::auto_wrap(twice, WrapPolicy::types<LayerImpl>(), alone()) == Names{"a", ""});
  CHECK(twice(x).equal(plain));
}

TEST_CASE("a parameter tied across units is refused before anything is sharded, naming both") {
  struct Shared : torch::nn::Module {
    Tensor weight;
    explicit Shared(Tensor tensor) : weight(register_parameter("weight", std::move(tensor))) {}
    Tensor forward(Tensor x) { return torch::linear(x, weight); }
  };
  struct ModelImpl : torch::nn::Module {
    std::shared_ptr<fsdp::Module<Shared>> in, out;
    ModelImpl() {
      const Tensor weight = torch::randn({4, 4}).set_requires_grad(true);
      in = register_module("in", std::make_shared<fsdp::Module<Shared>>(weight));
      out = register_module("out", std::make_shared<fsdp::Module<Shared>>(weight));
    }
    Tensor forward(Tensor x) { return out->forward(in->forward(x)); }
  };
  FSDP_MODULE(Model);
  Model model;
  CHECK_THROWS_WITH(fsdp::auto_wrap(model, WrapPolicy::names({"in", "out"}), alone()),
                    Catch::Contains("\"in.weight\"") && Catch::Contains("\"out.weight\""));
  CHECK_THROWS_WITH(fsdp::auto_wrap(model, WrapPolicy::names({"out"}), alone()),
                    Catch::Contains("tied"));
  CHECK(unit_names(*model).empty());
  const Tensor x = torch::randn({2, 4}), plain = model(x);
  CHECK(fsdp::auto_wrap(model, WrapPolicy::names({}), alone()) == Names{""});
  CHECK(model(x).equal(plain));
}

TEST_CASE("classes kept in full precision become units that compute in float") {
  struct BnImpl : torch::nn::Module {
    fsdp::Holder<torch::nn::LinearImpl> fc{nullptr};
    fsdp::Holder<torch::nn::BatchNorm1dImpl> norm{nullptr};
    std::vector<torch::Dtype> seen;
    BnImpl() {
      fc = register_module("fc", fsdp::Holder<torch::nn::LinearImpl>(4, 4));
      norm = register_module("norm", fsdp::Holder<torch::nn::BatchNorm1dImpl>(4));
    }
    Tensor forward(Tensor x) {
      const Tensor a = fc(x), b = norm(a);
      seen = {a.scalar_type(), b.scalar_type()};
      return b;
    }
  };
  FSDP_MODULE(Bn);
  fsdp::Options options = alone();
  Bn model;
  SECTION("with mixed precision") {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    CHECK(fsdp::auto_wrap(model, WrapPolicy::names({}), options) == Names{"norm", ""});
    model(torch::randn({6, 4}));
    CHECK(model->seen == std::vector<torch::Dtype>{torch::kBFloat16, torch::kBFloat16});
    CHECK(model->norm->running_mean.scalar_type() == torch::kFloat);
  }
  SECTION("but not without") {
    CHECK(fsdp::auto_wrap(model, WrapPolicy::names({}), options) == Names{""});
  }
  SECTION("and one that cannot be intercepted is refused") {
    struct PlainImpl : torch::nn::Module {
      torch::nn::BatchNorm1d norm{nullptr};
      PlainImpl() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
      Tensor forward(Tensor x) { return norm(x); }
    };
    FSDP_MODULE(Plain);
    Plain plain;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    CHECK_THROWS_WITH(fsdp::auto_wrap(plain, WrapPolicy::names({}), options),
                      Catch::Contains("BatchNorm1dImpl"));
    options.mixed_precision.full_precision_classes.clear();
    CHECK(fsdp::auto_wrap(plain, WrapPolicy::names({}), options) == Names{""});
  }
}

TEST_CASE("a class kept in full precision changes nobody else's options") {
  struct BetweenImpl : torch::nn::Module {
    fsdp::Holder<torch::nn::BatchNorm1dImpl> norm{nullptr}, last{nullptr};
    fsdp::Holder<torch::nn::LinearImpl> fc{nullptr};
    std::vector<torch::Dtype> seen;
    BetweenImpl() {
      norm = register_module("a_norm", fsdp::Holder<torch::nn::BatchNorm1dImpl>(4));
      fc = register_module("b_fc", fsdp::Holder<torch::nn::LinearImpl>(4, 4));
      last = register_module("c_norm", fsdp::Holder<torch::nn::BatchNorm1dImpl>(4));
    }
    Tensor forward(Tensor x) {
      const Tensor a = norm(x), b = fc(a), c = last(b);
      seen = {norm->weight.scalar_type(), fc->weight.scalar_type(), a.scalar_type(),
              b.scalar_type(), c.scalar_type()};
      return c;
    }
  };
  FSDP_MODULE(Between);
  Between model;
  // One set of options for all, handed out by reference in whatever order modules are visited.
  auto shared = std::make_shared<fsdp::Options>(alone());
  shared->mixed_precision.param_dtype = torch::kBFloat16;
  shared->mixed_precision.buffer_dtype = torch::kBFloat16;
  shared->mixed_precision.full_precision_classes = {"torch::nn::BatchNorm*"};
  const bool by_policy = GENERATE(false, true);
  const WrapPolicy policy =
      by_policy ? WrapPolicy([shared](const WrapPolicy::Candidate&, const fsdp::Options&) {
        return std::optional<fsdp::Options>(*shared);
      })
                : WrapPolicy::always();
  CHECK(fsdp::auto_wrap(model, policy, *shared) == Names{"a_norm", "b_fc", "c_norm", ""});
  CHECK(shared->mixed_precision.param_dtype == torch::kBFloat16);
  CHECK(shared->mixed_precision.buffer_dtype == torch::kBFloat16);
  CHECK(!shared->mixed_precision.output_dtype);
  CHECK(!shared->mixed_precision.cast_forward_inputs);
  CHECK(shared->mixed_precision.full_precision_classes.size() == 1);
  const Tensor y = model(torch::randn({6, 4}));
  CHECK(model->seen == std::vector<torch::Dtype>{torch::kFloat, torch::kBFloat16, torch::kBFloat16,
                                                 torch::kBFloat16, torch::kBFloat16});
  CHECK(model->norm->running_mean.scalar_type() == torch::kFloat);
  y.sum().backward();
}

}  // namespace setup_auto_wrap_test
