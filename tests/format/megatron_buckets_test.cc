// Optimizer state in bucket space: decoded where the files tell the order of parameters, kept with
// the reason where not. Layouts written by a script after the sources of core 0.16.
#include <tessera/base/error.h>
#include <tessera/format/megatron_dist.h>
#include <tessera/format/megatron_torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "tests/format/megatron_dist_fixture.h"
#include "tests/support/note_text.h"

namespace tessera::megatron_buckets_test {
namespace {

using testing::BuiltMetadata;
using testing::DistFolder;
using testing::Numbers;

constexpr const char* kGroup =
    "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_"
    "(torch.float32, torch.float32).bucket_idx_";

/// A parameter of one rank: a tensor, or one layer of a stack.
struct Registered {
  std::string name;
  std::vector<std::int64_t> shape;  // of it alone
  std::int64_t layer = -1;
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }
};

/// Two layers, stacked, between an embedding and a norm.
std::vector<Registered> registered() {
  std::vector<Registered> out = {{"embedding.word_embeddings.weight", {7, 9}}};
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    out.push_back({"decoder.layers.mlp.linear_fc1.weight", {6, 5}, layer});
    out.push_back({"decoder.layers.mlp.linear_fc2.weight", {5, 6}, layer});
  }
  out.push_back({"decoder.final_layernorm.weight", {3}});
  return out;
}

/// What the distributed optimizer of `dp` ranks writes: buckets of at least `bucket_size` elements,
/// every parameter and every gap a piece of its own, cut at the ranks' borders. Element e of
/// parameter p is 1000 p + e; gaps hold -1.
class Script {
 public:
  Script(std::vector<Registered> params, std::int64_t dp, std::int64_t bucket_size)
      : params_(std::move(params)), dp_(dp), bucket_size_(bucket_size) {}

  void write(DistFolder& folder, const std::vector<std::string>& order,
             const std::vector<std::pair<std::string, std::string>>& renamed = {}) {
    folder.config(testing::kTorchDistConfig);
    folder.common(testing::dict({}));
    for (const std::string& name : order) add_model(name);
    for (const std::string leaf : {"param", "exp_avg"}) add_buckets(leaf, renamed);
    folder.data(metadata_, items_);
  }

 private:
  void add_model(const std::string& name) {
    std::vector<std::int64_t> shape;
    std::int64_t layers = 0;
    for (const Registered& param : params_)
      if (param.name == name) {
        shape = param.shape;
        layers += param.layer >= 0;
      }
    if (layers == 0) {
      add({name, "float32", shape, {{Numbers(shape.size()), shape}}});
      return;
    }
    std::vector<std::int64_t> piece = shape;
    piece.insert(piece.begin(), 1);
    shape.insert(shape.begin(), layers);
    testing::BuiltTensor tensor{name, "float32", shape, {}};
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      Numbers origin(shape.size());
      origin[0] = layer;
      tensor.chunks.push_back({origin, piece});
    }
    add(tensor);
  }

  void add(const testing::BuiltTensor& tensor) {
    metadata_.tensors.push_back(tensor);
    for (const auto& chunk : tensor.chunks) {
      metadata_.items.push_back(testing::dist_item(tensor.name, chunk.first));
      items_.push_back(testing::tensor_item(Shape(chunk.second), 0));
    }
  }

  void add_buckets(const std::string& leaf,
                   const std::vector<std::pair<std::string, std::string>>& renamed) {
    std::size_t next = params_.size();
    for (int bucket = 0; next > 0; ++bucket) {
      std::vector<std::pair<std::int64_t, std::int64_t>> pieces;  // begin, parameter or -1
      std::int64_t end = 0;
      while (next > 0 && end < bucket_size_) {
        if (end % 64 != 0) pieces.emplace_back(end, -1);
        end = (end + 63) / 64 * 64;
        pieces.emplace_back(end, static_cast<std::int64_t>(--next));
        end += params_[next].numel();
      }
      pieces.emplace_back(end, -1);
      std::string name = kGroup + std::to_string(bucket) + "." + leaf;
      for (const auto& [from, to] : renamed)
        if (const auto at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
      add_bucket(name, pieces, end);
    }
  }

  void add_bucket(const std::string& name,
                  const std::vector<std::pair<std::int64_t, std::int64_t>>& pieces,
                  std::int64_t end) {
    const std::int64_t padded = (end + 128 * dp_ - 1) / (128 * dp_) * (128 * dp_);
    testing::BuiltTensor tensor{name, "float32", {end}, {}};
    for (std::size_t p = 0; p + 1 < pieces.size(); ++p) {
      for (std::int64_t at = pieces[p].first; at < pieces[p + 1].first;) {
        const std::int64_t stop =
            std::min(pieces[p + 1].first, (at / (padded / dp_) + 1) * (padded / dp_));
        tensor.chunks.push_back({{at}, {stop - at}});
        metadata_.items.push_back(testing::dist_item(name, Numbers{at}));
        const std::int64_t of = pieces[p].second;
        items_.push_back(testing::tensor_item(
            {stop - at}, of < 0 ? -1.0f : static_cast<float>(1000 * of + at - pieces[p].first)));
        at = stop;
      }
    }
    metadata_.tensors.push_back(tensor);
  }

  std::vector<Registered> params_;
  std::int64_t dp_, bucket_size_;
  BuiltMetadata metadata_;
  std::vector<Bytes> items_;
};

std::vector<std::string> order_of(const std::vector<Registered>& params) {
  std::vector<std::string> out;
  for (const Registered& param : params)
    if (std::ranges::find(out, param.name) == out.end()) out.push_back(param.name);
  return out;
}

std::string reason(const Manifest& manifest) {
  for (const Note& note : manifest.notes)
    if (testing::note_code(note) == "CK091") return note.message;
  return {};
}

std::string write_failure(const FormatDriver& driver, const Manifest& manifest,
                          const std::string& mesh) {
  TargetRequest request;
  request.mesh = Mesh::parse(mesh);
  std::string message;
  CHECK(test::code_of([&] { driver.output_plan(manifest, request); }, &message) ==
        Code::kUnsupported);
  return message;
}

}  // namespace

TEST_CASE("buckets that the files can tell apart become state of the model's parameters") {
  for (const std::int64_t dp : {1, 2, 3, 4, 7, 8, 16}) {
    for (const std::int64_t bucket_size : {50, 100, 100000}) {
      CAPTURE(dp, bucket_size);
      const auto params = registered();
      DistFolder folder;
      Script(params, dp, bucket_size).write(folder, order_of(params));
      const Manifest manifest = folder.read();
      CHECK_THAT(reason(manifest), Catch::Contains("state of the model's parameters"));
      for (const std::string leaf : {"param", "exp_avg"}) {
        std::map<std::string, std::vector<float>> expected;
        for (std::size_t p = 0; p < params.size(); ++p)
          for (std::int64_t e = 0; e < params[p].numel(); ++e)
            expected[params[p].name].push_back(static_cast<float>(1000 * p) +
                                               static_cast<float>(e));
        for (const auto& [name, values] : expected) {
          CAPTURE(name);
          const std::string state = "optimizer.state." + leaf + "." + name;
          REQUIRE(manifest.find(state));
          CHECK(manifest.find(state)->spec == manifest.find(name)->spec);
          CHECK(folder.floats(manifest, state) == values);
        }
      }
      CHECK(std::ranges::none_of(manifest.tensors, [](const StoredTensor& t) {
        return t.name.find("bucket_idx") != std::string::npos;
      }));
    }
  }
}

TEST_CASE("another order of parameters than the model's entries have is not guessed") {
  const auto params = registered();
  auto order = order_of(params);
  std::ranges::reverse(order);
  DistFolder folder;
  Script(params, 2, 100000).write(folder, order);
  const Manifest manifest = folder.read();
  CHECK_THAT(reason(manifest), Catch::Contains("param_index_map"));
  CHECK(manifest.find(kGroup + std::string("0.param"))->kind == TensorKind::kMaster);
  CHECK(manifest.find(kGroup + std::string("0.exp_avg"))->kind == TensorKind::kOptim);
}

TEST_CASE("buckets that cannot be decoded go to as many ranks only and say what is missing") {
  const auto params = registered();
  DistFolder folder;
  // A second leaf of another group: two model-parallel ranks.
  Script(params, 2, 100000)
      .write(folder, order_of(params),
             {{"dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, "
               "torch.float32).bucket_idx_0.exp_avg",
               "dp_group_idx_1.gbuf_idx_0.dtype_(torch.float32, "
               "torch.float32).bucket_idx_0.exp_avg"}});
  const Manifest manifest = folder.read();
  CHECK_THAT(reason(manifest), Catch::Contains("2 model-parallel groups"));
  CHECK_THAT(
      write_failure(megatron_dist_driver(), manifest, "tp=1"),
      Catch::Contains("2 model-parallel groups, for tp=1") && Catch::Contains("param_index_map"));
  CHECK_THAT(write_failure(megatron_torch_driver(), manifest, "tp=2"),
             Catch::Contains("param_index_map"));
  TargetRequest same;
  same.mesh = Mesh::parse("tp=2,dp=3");
  CHECK_NOTHROW(megatron_dist_driver().output_plan(manifest, same));
}

TEST_CASE("a bucket that is missing or shorter than its peers is not decoded") {
  const auto params = registered();
  DistFolder folder;
  Script(params, 2, 50)
      .write(folder, order_of(params), {{"bucket_idx_1.exp_avg", "bucket_idx_9.exp_avg"}});
  CHECK_THAT(reason(folder.read()), Catch::Contains("missing or of other sizes"));
}

TEST_CASE("names that only look like buckets stay as they are") {
  const auto params = registered();
  DistFolder folder;
  Script(params, 2, 100000).write(folder, order_of(params), {{"gbuf_idx_0", "gbuf_idx_x"}});
  CHECK_THAT(reason(folder.read()), Catch::Contains("no name of a bucket"));
}

}  // namespace tessera::megatron_buckets_test
