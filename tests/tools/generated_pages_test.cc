// Man pages, completions and docs/commands.md name every flag that the parser knows.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/support/run_command.h"
#include "tools/args/args.h"
#include "tools/version.h"

namespace generated_pages_test {

using namespace tessera::testing;
using namespace tessera::tools;

namespace {

const std::vector<std::pair<Tool, std::string>> kTools = {{Tool::kInspect, "ckpt-inspect"},
                                                          {Tool::kReshard, "ckpt-reshard"},
                                                          {Tool::kConvert, "ckpt-convert"}};

std::string generated(const std::string& tool, const std::string& kind) {
  const CommandResult result = run_command({built(tool), "--generate", kind});
  REQUIRE(result.exit == 0);
  CHECK(result.err.empty());
  return result.out;
}

/// Long names of every option, subcommands' included.
std::vector<std::string> flags_of(const CommandSpec& spec) {
  std::vector<std::string> flags;
  for (const OptionSpec& option : spec.options) flags.push_back(option.names.back());
  for (const CommandSpec& command : spec.commands) {
    for (const std::string& flag : flags_of(command)) flags.push_back(flag);
  }
  return flags;
}

std::string source_text(const std::string& relative) {
  std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/" + relative);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace

TEST_CASE("pages and completions name every flag") {
  for (const auto& [tool, name] : kTools) {
    const std::string man = generated(name, "man");
    const std::string bash = generated(name, "bash");
    const std::string zsh = generated(name, "zsh");
    const std::string fish = generated(name, "fish");
    CHECK(man.starts_with(".TH "));
    CHECK(zsh.starts_with("#compdef " + name));
    CHECK(bash.find("complete -F") != std::string::npos);
    for (const std::string& flag : flags_of(command_spec(tool))) {
      INFO(name << " " << flag);
      CHECK(man.find("\\fB" + replaced(flag, "-", "\\-") + "\\fR") != std::string::npos);
      CHECK(bash.find(flag) != std::string::npos);
      CHECK(zsh.find(flag) != std::string::npos);
      CHECK(fish.find(" -l " + flag.substr(2)) != std::string::npos);
    }
  }
}

TEST_CASE("the bash completion loads and completes subcommands, flags and choices") {
  const TemporaryFolder t;
  std::ofstream(t / "c.bash") << generated("ckpt-inspect", "bash");
  const auto complete = [&](const std::string& words, int at) {
    const std::string script = "compopt() { :; }; source " + (t / "c.bash") + "; COMP_WORDS=(" +
                               words + "); COMP_CWORD=" + std::to_string(at) +
                               "; _ckpt_inspect; echo \"${COMPREPLY[*]}\"";
    CommandOptions options;
    options.directory = t.path();
    return run_command({"/bin/bash", "-c", script}, options);
  };
  CHECK(complete("ckpt-inspect ver", 1).out == "verify\n");
  CHECK(complete("ckpt-inspect ls --so", 2).out == "--sort\n");
  CHECK(complete("ckpt-inspect ls --format nd", 3).out == "ndjson\n");
  CHECK(complete("ckpt-inspect ls --format nd", 3).err.empty());
  CHECK(complete("ckpt-inspect ls c.b", 2).out == "c.bash\n");
}

TEST_CASE("docs/commands.md has every flag and subcommand") {
  const std::string page = source_text("docs/commands.md");
  REQUIRE_FALSE(page.empty());
  for (const auto& [tool, name] : kTools) {
    CHECK(page.find("## " + name) != std::string::npos);
    const CommandSpec spec = command_spec(tool);
    for (const CommandSpec& command : spec.commands)
      CHECK(page.find("### " + command.name) != std::string::npos);
    for (const std::string& flag : flags_of(spec)) {
      INFO(flag);
      CHECK(page.find("`" + flag) != std::string::npos);
    }
  }
}

TEST_CASE("the version is the project's") {
  CHECK(source_text("CMakeLists.txt")
            .find("project(tessera VERSION " + std::string(kVersion) + " ") != std::string::npos);
  CHECK(inspect({"--version"}).out == "ckpt-inspect " + std::string(kVersion) + "\n");
}

}  // namespace generated_pages_test
