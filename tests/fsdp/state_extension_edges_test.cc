// Extensions that fail on one rank, and parts of every type and shape.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/layout/layout.h>

#include <chrono>
#include <functional>
#include <optional>

#include "tests/fsdp/extension_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_extension_edges_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictType;
using fsdp::StoredPart;
using tessera::Box;
using tessera::Placement;

namespace {

/// What comes after a parameter with which it fails is there too.
struct ThreeImpl : torch::nn::Module {
  torch::Tensor a, b, c;
  ThreeImpl() {
    a = register_parameter("a", counted({6, 5}));
    b = register_parameter("b", counted({4, 3}));
    c = register_parameter("c", counted({3, 2}));
  }
  torch::Tensor forward(torch::Tensor x) { return (a * x).sum() + b.sum() + c.sum(); }
};
FSDP_MODULE(Three);

void fill_all(torch::nn::Module& model, double value) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model.parameters()) parameter.fill_(value);
}

enum class Hook { kIsTransformed, kPostUnflatten, kChunk, kDTensor, kGather, kPreLoad };

/// Leaves all to the defaults, and throws in one of them: of "b", where `here`.
struct Throws : fsdp::Extension {
  Hook hook = Hook::kPreLoad;
  bool here = false, odd = false;
  void maybe(Hook asked, const std::string& name) const {
    if (!here || asked != hook || name != "b") return;
    if (odd) throw 42;
    throw std::runtime_error("not on this rank");
  }
  bool is_transformed(const torch::nn::Module&, const std::string& name) const override {
    maybe(Hook::kIsTransformed, name);
    return true;
  }
  std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string& name,
                                         const at::Tensor& whole) const override {
    maybe(Hook::kPostUnflatten, name);
    return {{name, whole}};
  }
  Box chunk(const StoredPart& part, int index, int count) const override {
    maybe(Hook::kChunk, part.name);
    return Extension::chunk(part, index, count);
  }
  Placement chunk_as_dtensor(const StoredPart& part, const tessera::Mesh& mesh) const override {
    maybe(Hook::kDTensor, part.name);
    return Extension::chunk_as_dtensor(part, mesh);
  }
  at::Tensor gather(const StoredPart& chunk, const tessera::Shape& whole,
                    const std::vector<Box>& chunks, fsdp::Communicator& ranks) const override {
    maybe(Hook::kGather, chunk.name);
    return Extension::gather(chunk, whole, chunks, ranks);
  }
  at::Tensor pre_load(const torch::nn::Module& module, const std::string& name,
                      const std::vector<StoredPart>& stored) const override {
    maybe(Hook::kPreLoad, name);
    return Extension::pre_load(module, name, stored);
  }
};

}  // namespace

TEST_CASE(
    "a hook that throws on one rank is told by every rank, soon, and nothing is half loaded") {
  const bool odd = GENERATE(false, true);
  const std::string backend = GENERATE("threads", "gloo");
  const auto hook = GENERATE(Hook::kIsTransformed, Hook::kPostUnflatten, Hook::kChunk,
                             Hook::kDTensor, Hook::kGather, Hook::kPreLoad);
  const bool full = GENERATE(false, true);
  CAPTURE(odd, backend, static_cast<int>(hook), full);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::WorldOptions world_options;
  world_options.backend = backend;
  std::vector<std::string> errors(3);
  std::vector<std::chrono::steady_clock::duration> times(3);
  const auto ranks = [&](fsdp::World& world) {
    const auto extension = std::make_shared<Throws>();
    extension->hook = hook;
    extension->odd = odd;
    Three model;
    fully_shard(model, options_of(world, hook != Hook::kChunk, extension));
    fsdp::StateDictOptions options;
    if (full) options.type = StateDictType::kFull;
    tessera::save("/run/a", fsdp::state_dict(model, options), world.ranks(), saving);
    fill_all(*model, -3);
    extension->here = world.rank() == 1;
    const auto begun = std::chrono::steady_clock::now();
    const std::string found = error_of(
        [&] { tessera::load("/run/a", fsdp::state_dict(model, options), world.ranks(), loading); });
    const auto rank = static_cast<std::size_t>(world.rank());
    times[rank] = std::chrono::steady_clock::now() - begun;
    errors[rank] = found;
    if (!found.empty())
      for (const torch::Tensor& parameter : model->parameters())
        RANK_CHECK(same_bits(parameter, torch::full_like(parameter, -3)));
  };
  fsdp::run_threads(3, ranks, world_options);
  const bool sharded_only = hook == Hook::kChunk || hook == Hook::kDTensor || hook == Hook::kGather;
  for (std::size_t r = 0; r < 3; ++r) {
    CAPTURE(r, errors[r]);
    CHECK(times[r] < std::chrono::seconds(15));
    CHECK(errors[r].empty() == (full && sharded_only));
    if (!errors[r].empty() && !odd) CHECK_THAT(errors[r], Catch::Contains("not on this rank"));
  }
}

TEST_CASE("load_full_state loads nothing anywhere where pre_load throws on one rank") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto extension = std::make_shared<Throws>();
    Three model;
    fully_shard(model, options_of(world, true, extension));
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));
    fsdp::StateDictOptions options;
    options.type = StateDictType::kFull;
    const auto full = fsdp::state_dict(model, optimizer, options);
    fill_all(*model, -3);
    extension->here = world.rank() == 1;
    const auto load = [&] { fsdp::load_full_state(model, optimizer, full, false); };
    const std::string found = error_of(load);
    RANK_CHECK(found.find("not on this rank") != std::string::npos, found);
    for (const torch::Tensor& parameter : model->parameters())
      RANK_CHECK(same_bits(parameter, torch::full_like(parameter, -3)));
    extension->here = false;
    load();
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->a, counted({6, 5})));
  });
}

TEST_CASE("names that two tensors would have in a state are refused by every rank alike") {
  struct Same : fsdp::Extension {
    std::string name;
    bool is_transformed(const torch::nn::Module&, const std::string& parameter) const override {
      return name == "same" || parameter == "a";
    }
    std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string&,
                                           const at::Tensor& whole) const override {
      return {{name, whole}};
    }
  };
  const std::string name = GENERATE("same", "b");
  const auto type = GENERATE(StateDictType::kSharded, StateDictType::kFull);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    const auto extension = std::make_shared<Same>();
    extension->name = name;
    Three model;
    fully_shard(model, options_of(world, true, extension));
    fsdp::StateDictOptions options;
    options.type = type;
    options.rank0_only = type == StateDictType::kFull;
    const std::string found = error_of([&] { fsdp::state_dict(model, options); });
    RANK_CHECK(found.find(fmt::format("\"a\" and \"b\" both stand under \"model.{}\"", name)) !=
                   std::string::npos,
               found);
  });
}

TEST_CASE("parts of every type and shape come back, on other ranks and from other forms too") {
  struct Parts : Defaults {
    int which;
    std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string&,
                                           const at::Tensor& whole) const override {
      std::vector<StoredPart> out{{"matrix", whole.t()}};  // not contiguous
      auto add = [&](const char* name, at::Tensor t) { out.push_back({name, std::move(t)}); };
      if (which == 0) {
        add("bool", whole > 7);
        add("int8", whole.to(torch::kChar));
        add("bf16", whole.to(torch::kBFloat16));
        add("short", whole.to(torch::kShort));
        add("f8", whole.to(torch::kFloat8_e4m3fn));
        add("complex", torch::complex(whole, -whole).conj());
        add("scalar", torch::full({}, 3.5).requires_grad_());
        add("scalar_int", torch::full({}, 3, torch::kLong));
      } else if (which == 1) {
        add("empty", torch::empty({0, 5}));
        add("empty2", torch::empty({5, 0}));
        add("empty1", torch::empty({0}));
        add("expanded", torch::full({1}, 4.0).expand({6, 5}));
        add("twice", whole);
        add("again", whole);
        add("view", whole.narrow(1, 1, 2));
        add("grad", torch::full({3}, 2.0).requires_grad_());
        add("flip", torch::imag(torch::complex(whole, whole).conj()));  // negative bit
      } else if (which == 2) {
        add("u16", whole.to(torch::kInt).to(torch::kUInt16));
        add("u32", whole.to(torch::kInt).to(torch::kUInt32));
        add("e8m0", whole.to(torch::kFloat8_e8m0fnu));
        add("f8b", whole.to(torch::kFloat8_e5m2fnuz));
        add("half", whole.to(torch::kHalf));
        add("chalf", torch::complex(whole, whole).to(torch::kComplexHalf));
      } else {
        add("f4", whole.to(torch::kByte).view(torch::kFloat4_e2m1fn_x2));
      }
      return out;
    }
    at::Tensor pre_load(const torch::nn::Module& module, const std::string& name,
                        const std::vector<StoredPart>& stored) const override {
      const at::Tensor whole = stored[0].tensor.t().contiguous();
      const auto expected = post_unflatten(module, name, whole);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const at::Tensor a = stored[i].tensor, b = expected[i].tensor;
        if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.requires_grad() ||
            stored[i].name != expected[i].name ||
            !at::equal(a.contiguous().resolve_conj().resolve_neg().view({-1}).view(torch::kByte),
                       b.contiguous().resolve_conj().resolve_neg().view({-1}).view(torch::kByte)))
          throw std::runtime_error("differs: " + expected[i].name);
      }
      return whole;
    }
  };
  const int which = GENERATE(0, 1, 2, 3);
  const int kind = GENERATE(0, 1, 2, 3, 4, 5);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(which, kind);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto run = [&](int ranks, int how) {
    fsdp::run_threads(ranks, [&](fsdp::World& world) {
      Matrix model;
      const auto extension = std::make_shared<Parts>();
      extension->which = which;
      fsdp::Options options = options_of(world, how != 1, extension, layout);
      fsdp::StateDictOptions form;
      if (how == 2) {
        options.mesh = fsdp::DeviceMesh(world, {2, ranks / 2}, {"replicate", "shard"});
        options.strategy = fsdp::ShardingStrategy::kHybridShard;
      }
      if (how == 3) options.strategy = fsdp::ShardingStrategy::kNoShard;
      if (how == 4) form.even_chunks = true;
      if (how == 5) {
        form.type = StateDictType::kFull;
        form.rank0_only = true;
      }
      fully_shard(model, options);
      fsdp::value_forms(model, form);
      if (ranks == 4) tessera::save("/run/a", fsdp::state_dict(model, form), world.ranks(), saving);
      fill(model, -3);
      tessera::load("/run/a", fsdp::state_dict(model, form), world.ranks(), loading);
      const fsdp::SummonFullParams summoned(model);
      RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})));
    });
  };
  run(4, kind);
  run(6, (kind + 1) % 6);
  run(2, (kind + 3) % 6);
}

TEST_CASE("a lazy save takes what a state has gathered, beside the parameter's optimizer state") {
  struct Columns : Defaults {
    Placement chunk_as_dtensor(const StoredPart&, const tessera::Mesh&) const override {
      return Placement::shard(1);
    }
  };
  tessera::MemoryFileSystem fs;
  tessera::LoadPolicy loading;
  loading.file_system = &fs;
  const auto make = [&](fsdp::World& world, Matrix& model) {
    fully_shard(model, options_of(world, true, std::make_shared<Columns>()));
    return std::make_unique<torch::optim::SGD>(model->parameters(),
                                               torch::optim::SGDOptions(1.0).momentum(0.5));
  };
  fsdp::run_threads(4, [&](fsdp::World& world) {
    Matrix model;
    auto optimizer = make(world, model);
    const auto step = [&] {
      optimizer->zero_grad();
      model->forward(torch::ones({1})).backward();
      optimizer->step();
    };
    step();
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    saving.snapshot = tessera::SnapshotTiming::kLazy;
    auto pending =
        tessera::save_async("/run/a", fsdp::state_dict(model, *optimizer), world.ranks(), saving);
    model->forward(torch::ones({1})).backward();
    pending.finish_snapshot();
    step();
    pending.wait();
  });
  CHECK(same_bits(stored_matrix(fs), counted({kRows, kColumns}) - 1));
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Matrix model;
    auto optimizer = make(world, model);
    fill(model, -5);
    tessera::load("/run/a", fsdp::state_dict(model, *optimizer), world.ranks(), loading);
    optimizer->zero_grad();
    model->forward(torch::ones({1})).backward();
    optimizer->step();
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns}) - 2.5));
    RANK_CHECK(same_bits(model->plain, counted({7}) - 2.5));
  });
}

}  // namespace state_extension_edges_test
