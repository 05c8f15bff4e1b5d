// One program under several names: what each answers to.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/run_command.h"

namespace multi_call_test {

using namespace tessera::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("tessera COMMAND says and does what ckpt-COMMAND does") {
  const std::string path = sample("dcp/fsdp2_w2/checkpoint");
  for (const std::string command : {"inspect", "reshard", "convert"}) {
    INFO(command);
    for (const std::string word : {"--version", "--help"}) {
      const CommandResult linked = run_command({built("ckpt-" + command), word});
      const CommandResult first_word = run_command({built("tessera"), command, word});
      const CommandResult whole_name = run_command({built("tessera"), "ckpt-" + command, word});
      CHECK(linked.exit == 0);
      CHECK_THAT(linked.out, Contains("ckpt-" + command));
      CHECK(first_word.exit == 0);
      CHECK(first_word.out == linked.out);
      CHECK(whole_name.out == linked.out);
    }
  }
  const CommandResult linked = inspect({"hash", path, "--format", "json"});
  const CommandResult first_word =
      run_command({built("tessera"), "inspect", "hash", path, "--format", "json"});
  CHECK(linked.exit == 0);
  CHECK(first_word.exit == 0);
  CHECK(first_word.out == linked.out);
}

TEST_CASE("a copy of the program under a command's name is that command") {
  const TemporaryFolder t;
  std::filesystem::copy_file(built("tessera"), t / "ckpt-convert");
  const CommandResult result = run_command({t / "ckpt-convert", "--version"});
  CHECK(result.exit == 0);
  CHECK_THAT(result.out, StartsWith("ckpt-convert "));
}

TEST_CASE("tessera alone says which commands there are") {
  const CommandResult help = run_command({built("tessera"), "--help"});
  CHECK(help.exit == 0);
  CHECK(help.err.empty());
  for (const std::string command : {"inspect", "reshard", "convert"})
    CHECK_THAT(help.out, Contains(command));
  const CommandResult version = run_command({built("tessera"), "--version"});
  CHECK(version.exit == 0);
  CHECK_THAT(version.out, StartsWith("tessera "));
  const CommandResult nothing = run_command({built("tessera")});
  CHECK(nothing.exit == 2);
  CHECK(nothing.out.empty());
  CHECK(nothing.err == help.out);
  const CommandResult unknown = run_command({built("tessera"), "merge\x1b[2J"});
  CHECK(unknown.exit == 2);
  CHECK_THAT(unknown.err, StartsWith("tessera: there is no command \"merge\\x1b[2J\""));
}

}  // namespace multi_call_test
