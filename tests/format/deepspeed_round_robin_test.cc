// Parameters dealt out by round_robin_gradients: the flat buffers go by param_shapes, while the
// slices that DeepSpeed records go by the order its engine was given (tests/format/data).
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/ops/verify.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace tessera::deepspeed_round_robin_test {
namespace {

using namespace testing;

const std::string kDealtOut = "../tests/format/data/deepspeed_round_robin/";

}  // namespace

TEST_CASE("dealt-out parameters are those of a run that dealt out none, at every world size") {
  for (const std::string name : {"zero1_w3", "zero2_w2"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    const std::string path = load_sample(fs, kDealtOut + name);
    const OpenedContent source = content_at(fs, path);
    CHECK(source.tensors == expected_content(SampleCase(kDealtOut + name).expected));
    VerifyOptions full;
    full.level = VerifyLevel::kFull;
    CHECK(verify_checkpoint(fs, path, full).ok);
    for (const std::int64_t ranks : {1, 2, 3, 4, 16}) {
      CAPTURE(ranks);
      const std::string out = fmt::format("/out{}", ranks);
      convert(fs, convert_options(path, out, ranks));
      const OpenedContent there = content_at(fs, out);
      CHECK(there.tensors == source.tensors);
      CHECK(there.values == source.values);
    }
  }
}

TEST_CASE("a renamed file of dealt-out parameters is known by its slices all the same") {
  MemoryFileSystem fs;
  const std::string path = load_sample(fs, kDealtOut + "zero1_w3");
  const std::string rank = "/source/global_step2/zero_pp_rank_{}_mp_rank_00_optim_states.pt";
  fs.write_file(fmt::format(fmt::runtime(rank), 1),
                fs.read_file(fmt::format(fmt::runtime(rank), 0)));
  try {
    content_at(fs, path);
    FAIL("read rank 0's slices as rank 1's");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    CHECK_THAT(std::string(error.what()), Catch::Contains("another slice"));
  }
}

}  // namespace tessera::deepspeed_round_robin_test
