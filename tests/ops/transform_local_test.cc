// Names, types and members of FSDP1's flat parameters changed while they are resharded: what a flat
// parameter cannot hold becomes sharded tensors, with the same values.
#include <tessera/format/torch_rank_files.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace transform_local_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

using Tensors = std::map<std::string, std::string>;

struct Local {
  MemoryFileSystem fs;
  std::string source, layout;
  ConvertReport report;

  explicit Local(const std::string& name)
      : source(load_sample(fs, name)),
        layout(test::read_whole(TESSERA_SOURCE_DIR "/sample_checkpoints/" + name +
                                "/expected.json")) {}

  Tensors reshard(const std::string& to, void (*adjust)(ConvertOptions&)) {
    ConvertOptions options = convert_options(source, to, 5);
    options.own.set(kFlatLayoutFlag, layout);
    options.verify = true;
    adjust(options);
    report = convert(fs, options);
    CHECK(report.verified);
    return content_at(fs, to).tensors;
  }
  bool became_sharded() const {
    return std::ranges::count(report.notes, "CK074", note_code<Note>) == 1;
  }
};

const std::vector<std::string> kSamples = {"torchsave/fsdp1_local_rankfiles_w3",
                                           "torchsave/fsdp1_local_orig_rankfiles_w2"};

}  // namespace

TEST_CASE("a member of a flat parameter is renamed, left out or cast, and all else is as it was") {
  for (const std::string& name : kSamples) {
    CAPTURE(name);
    Local local(name);
    const Tensors whole = local.reshard("/whole", [](ConvertOptions&) {});
    CHECK_FALSE(local.became_sharded());

    Tensors expected;
    for (const auto& [key, content] : whole) {
      std::string fresh = key;
      if (const auto at = key.find("head.weight"); at != key.npos) fresh.replace(at, 4, "out");
      expected.emplace(fresh, content);
    }
    CHECK(local.reshard("/renamed", [](ConvertOptions& o) {
      o.names.renames = {{"head.weight", "out.weight"}};
    }) == expected);
    CHECK(local.became_sharded());

    expected = whole;
    CHECK(std::erase_if(expected, [](const auto& entry) {
            return entry.first.find("head.bias") != std::string::npos;
          }) == 4);
    CHECK(local.reshard("/cut", [](ConvertOptions& o) {
      o.selection.exclude = {"model.head.bias"};
    }) == expected);
    CHECK(local.became_sharded());

    const Tensors cast = local.reshard("/cast", [](ConvertOptions& o) {
      o.transform.keep_dtypes = {parse_keep_dtype("model.head.weight=bf16")};
    });
    CHECK(local.became_sharded());
    for (const auto& [key, content] : whole) {
      CAPTURE(key);
      if (key == "model.head.weight")
        CHECK(cast.at(key).starts_with("bfloat16"));
      else
        CHECK(cast.at(key) == content);
    }
  }
}

TEST_CASE("flat parameters that are cast as a whole stay flat") {
  for (const std::string& name : kSamples) {
    CAPTURE(name);
    Local local(name);
    const Tensors whole = local.reshard("/whole", [](ConvertOptions&) {});
    const Tensors cast =
        local.reshard("/cast", [](ConvertOptions& o) { o.transform.dtype = DType::kBFloat16; });
    CHECK_FALSE(local.became_sharded());
    REQUIRE(cast.size() == whole.size());
    for (const auto& [key, content] : whole) {
      CAPTURE(key);
      if (key.starts_with("model.") && content.starts_with("float32"))
        CHECK(cast.at(key).starts_with("bfloat16"));
      else
        CHECK(cast.at(key) == content);
    }
  }
}

}  // namespace transform_local_test
