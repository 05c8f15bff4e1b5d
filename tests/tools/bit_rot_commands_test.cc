// Damage to sealed results, as ckpt-inspect verify says it: exit 1 and findings where the metadata
// can be read, else exit 4; the file is named either way.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/run_command.h"

namespace bit_rot_commands_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A sealed result of a sample at out.
void write_result(const TemporaryFolder& t, const std::string& format) {
  const CommandResult wrote =
      convert({case_path("dcp/fsdp2_w2"), t / "out", "--to", format, "--verify"});
  INFO(wrote.err);
  REQUIRE(wrote.exit == 0);
}

void turn_bit(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  char byte = 0;
  file.get(byte);
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
  REQUIRE(file.good());
}

/// What the one line of an error says.
Value error_of(const CommandResult& result) {
  CHECK(result.out.empty());
  return parsed(result.err.substr(result.err.rfind("{\"schema\"")));
}

}  // namespace

TEST_CASE("verify names the tensor of a turned bit, by a manifest that lists sums of MiBs") {
  const TemporaryFolder t;
  write_result(t, "safetensors");
  const auto size =
      static_cast<std::streamoff>(std::filesystem::file_size(t / "out/model.safetensors"));
  turn_bit(t / "out/model.safetensors", size - 1);
  const CommandResult result = inspect({"verify", t / "out", "--format", "json"});
  INFO(result.out << result.err);
  REQUIRE(result.exit == 1);
  const Value report = parsed(result.out);
  const Value& finding = report.find("findings")->as_list().at(0);
  CHECK(finding.find("code")->as_string() == "CK043");
  CHECK(finding.find("file")->as_string() == "model.safetensors");
  CHECK_FALSE(finding.find("tensor")->as_string().empty());
  CHECK_THAT(finding.find("message")->as_string(), Catch::Contains("as if one bit of byte"));
}

TEST_CASE("verify blames the damaged file where damage looks like another format") {
  const TemporaryFolder t;
  write_result(t, "safetensors");
  turn_bit(t / "out/model.safetensors", 8);  // the brace that the header begins with
  const CommandResult result = inspect({"verify", t / "out", "--format", "json"});
  INFO(result.err);
  REQUIRE(result.exit == 4);
  const Value error = error_of(result);
  CHECK(error.find("code")->as_string() == "corrupt");
  CHECK(error.find("file")->as_string() == "model.safetensors");
  CHECK_THAT(error.find("message")->as_string(), Catch::Contains("so it cannot be opened"));
}

TEST_CASE("verify names a file that is gone, be it all there was or the pointer to it") {
  for (const auto& [format, file, exit] : {std::tuple{"torch-save", "checkpoint.pt", 4},
                                           std::tuple{"safetensors", "model.safetensors", 4},
                                           std::tuple{"deepspeed-zero", "latest", 1}}) {
    const TemporaryFolder t;
    write_result(t, format);
    std::filesystem::remove(t / ("out/" + std::string(file)));
    for (const char* level : {"--quick", "--full"}) {
      const CommandResult result = inspect({"verify", t / "out", level});
      INFO(format << " " << level << "\n" << result.out << result.err);
      CHECK(result.exit == exit);
      CHECK_THAT(result.out + result.err, Catch::Contains("does not match " + std::string(file)));
    }
  }
}

}  // namespace bit_rot_commands_test
