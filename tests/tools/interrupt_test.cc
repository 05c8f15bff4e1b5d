// SIGINT and SIGTERM during a conversion: no output, the finished part is kept, and the line that
// is printed continues it.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"

namespace interrupt_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBytes = std::uint64_t{384} << 20;

/// A safetensors file of one large sparse tensor: cheap to have, slow enough to write.
std::string make_large(const TemporaryFolder& t) {
  const std::string path = t / "large.safetensors";
  std::string header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(kBytes / 4096) +
                       ",1024],\"data_offsets\":[0," + std::to_string(kBytes) + "]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  file.close();
  fs::resize_file(path, 8 + length + kBytes);
  return path;
}

bool stage_exists(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(".out.tmp-")) return true;
  }
  return false;
}

/// Sends `signal` once, when the stage is there.
CommandOptions interrupting(const TemporaryFolder& t, int signal) {
  CommandOptions options;
  auto sent = std::make_shared<bool>(false);
  options.meanwhile = [&t, signal, sent](int pid) {
    if (*sent || !stage_exists(t.path())) return;
    kill(pid, signal);
    *sent = true;
  };
  return options;
}

std::vector<std::string> command(const TemporaryFolder& t, const std::string& source) {
  return {source, t / "out", "--to", "torch-dcp", "--world-size", "2", "--mem-limit", "16MiB"};
}

}  // namespace

TEST_CASE("an interrupted conversion leaves no output and says how to continue") {
  const TemporaryFolder t;
  const std::string source = make_large(t);
  const CommandResult stopped = convert(command(t, source), interrupting(t, SIGINT));
  INFO(stopped.err);
  REQUIRE(stopped.exit == 130);
  CHECK(stopped.out.empty());
  CHECK_FALSE(fs::exists(t / "out"));
  REQUIRE(stage_exists(t.path()));
  const std::string line = built("ckpt-convert") + " " + source + " " + (t / "out") +
                           " --to torch-dcp --world-size 2 --mem-limit 16MiB --resume\n";
  const std::size_t at = stopped.err.find(line);
  REQUIRE(at != std::string::npos);

  // The very line, by a shell.
  const CommandResult resumed = run_command({"/bin/sh", "-c", line});
  INFO(resumed.err);
  CHECK(resumed.exit == 0);
  CHECK(fs::exists(t / "out"));
  CHECK_FALSE(stage_exists(t.path()));
  CHECK(inspect({"diff", source, t / "out"}).exit == 0);
}

TEST_CASE("SIGTERM is exit 143, in JSON too; --no-keep keeps nothing") {
  const TemporaryFolder t;
  const std::string source = make_large(t);
  std::vector<std::string> words = command(t, source);
  words.insert(words.end(), {"--no-keep", "--format", "json"});
  const CommandResult stopped = convert(words, interrupting(t, SIGTERM));
  INFO(stopped.err);
  REQUIRE(stopped.exit == 143);
  CHECK(stopped.out.empty());
  CHECK(t.names() == std::vector<std::string>{"large.safetensors"});
  const Value error = parsed(stopped.err);
  CHECK(schema_violations(published_schema("error"), error).empty());
  CHECK(error.find("code")->as_string() == "cancelled");
  CHECK(error.find("exit")->as_int() == 143);
}

}  // namespace interrupt_test
