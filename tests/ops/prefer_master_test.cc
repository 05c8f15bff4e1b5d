// --prefer master through whole conversions: weights with the bytes and the type of their fp32
// masters, from every form in which Megatron's mixed precision leaves those on disk.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/format/megatron_fixture.h"
#include "tests/support/convert_case.h"

namespace tessera::prefer_master_test {
namespace {

ConvertOptions options_for(const std::string& from, const std::string& to,
                           const std::string& format) {
  ConvertOptions options = testing::convert_options(from, to, std::nullopt, format);
  options.rank_state = RankStatePolicy::kDrop;
  if (format.starts_with("megatron")) options.target.mesh = Mesh::parse("tp=2");
  return options;
}

}  // namespace

TEST_CASE("an exported model has its masters' bytes, whichever format kept them") {
  MemoryFileSystem fs;
  testing::ToyOptions toy;
  toy.tp = 2;
  toy.half = true;
  testing::write_toy(fs, "/megatron-torch", toy);
  for (const std::string format : {"megatron-dist", "torch-dcp", "torch-save"})
    convert(fs, options_for("/megatron-torch", "/" + format, format));
  for (const std::string format : {"megatron-torch", "megatron-dist", "torch-dcp", "torch-save"}) {
    CAPTURE(format);
    const auto source = testing::content_at(fs, "/" + format).tensors;
    ConvertOptions options = options_for("/" + format, "/from-" + format, "torch-dcp");
    options.prefer_master = true;
    options.selection.only = Part::kModel;
    options.verify = true;
    CHECK(convert(fs, options).verified);
    const auto exported = testing::content_at(fs, "/from-" + format).tensors;
    const std::string leaf = ".fp32_param";
    std::size_t masters = 0;
    for (const auto& [name, content] : source) {
      if (!name.ends_with(leaf)) continue;
      const std::string prefix = "optimizer.state.";
      REQUIRE(name.starts_with(prefix));
      const std::string weight =
          "model." + name.substr(prefix.size(), name.size() - prefix.size() - leaf.size());
      CAPTURE(weight);
      REQUIRE(exported.contains(weight));
      CHECK(content.starts_with("float32"));
      CHECK(source.at(weight).starts_with("bfloat16"));
      CHECK(exported.at(weight) == content);
      ++masters;
    }
    CHECK(masters >= 8);
  }
}

}  // namespace tessera::prefer_master_test
