// ls and hash of every sample equal what the frameworks' own loaders saw.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/cli_oracle.h"
#include "tests/support/run_command.h"

namespace samples_read_test {

using namespace tessera::testing;

namespace {

void check_group(const std::string& group) {
  const std::vector<OracleCase> cases = oracle_cases({group});
  REQUIRE_FALSE(cases.empty());
  for (const OracleCase& one : cases) {
    std::vector<std::string> differences = tensor_differences(one, one.path);
    if (differences.empty()) differences = value_differences(one, one.path);
    const bool refused =
        !differences.empty() && (differences[0].find("exit 4") != std::string::npos ||
                                 differences[0].find("exit 5") != std::string::npos);
    if (one.refuse && refused) continue;
    if (!differences.empty())
      FAIL_CHECK(one.name << ": " << differences.size() << " differences, as " << differences[0]);
  }
}

}  // namespace

TEST_CASE("torch-dcp samples read exactly") { check_group("dcp"); }
TEST_CASE("torch-dcp samples of older PyTorch read exactly") { check_group("dcp-old"); }
TEST_CASE("torch-save samples read exactly") { check_group("torchsave"); }
TEST_CASE("safetensors samples read exactly") { check_group("safetensors"); }
TEST_CASE("quantized samples read exactly, as they are stored") { check_group("quantized"); }
TEST_CASE("OLMo-core samples read exactly") { check_group("olmo-core"); }
TEST_CASE("Trainer's samples read exactly") { check_group("hf-trainer"); }
TEST_CASE("torchsnapshot samples read exactly") { check_group("torchsnapshot"); }
TEST_CASE("Megatron samples read exactly") { check_group("megatron"); }
TEST_CASE("HDF5 samples read exactly") {
  if (!std::filesystem::exists(built("tessera-hdf5"))) {
    WARN("skipped: HDF5 is not part of this build");
    return;
  }
  check_group("hdf5");
}

}  // namespace samples_read_test
