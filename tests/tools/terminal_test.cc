// Colours, widths, the exit of a closed pipe, and how fast a command starts.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/run_command.h"
#include "tests/support/sanitized.h"
#include "tools/args/args.h"
#include "tools/render/screen.h"

namespace terminal_test {

using namespace tessera::testing;
using tessera::tools::display_width;

namespace {

const char kEscape = '\x1b';
bool colored(const CommandResult& result) { return result.out.find(kEscape) != std::string::npos; }

CommandOptions on_terminal(std::map<std::string, std::string> environment) {
  CommandOptions options;
  options.terminal = true;
  environment.emplace("TERM", "xterm");
  options.environment = std::move(environment);
  return options;
}

int longest_line(const std::string& text) {
  std::istringstream lines(text);
  int longest = 0;
  for (std::string line; std::getline(lines, line);)
    longest = std::max(longest, display_width(line));
  return longest;
}

}  // namespace

TEST_CASE("colours appear on a terminal only, and not when refused") {
  const std::string path = case_path("dcp/fsdp2_w4");
  CHECK(colored(inspect({path}, on_terminal({}))));
  CHECK_FALSE(colored(inspect({path}, on_terminal({{"NO_COLOR", "1"}}))));
  CHECK_FALSE(colored(inspect({path}, on_terminal({{"TERM", "dumb"}}))));
  CHECK_FALSE(colored(inspect({path, "--no-color"}, on_terminal({}))));
  CHECK_FALSE(colored(inspect({path, "--format", "json"}, on_terminal({}))));
  CommandOptions piped;
  piped.environment = {{"TERM", "xterm"}};
  CHECK_FALSE(colored(inspect({path}, piped)));
}

TEST_CASE("output fits what COLUMNS says, and names stay whole where nobody says anything") {
  for (const std::string name :
       {"dcp/fsdp2_w4", "dcp/objects_2x2", "torchsave/adamw_zip", "safetensors/all_dtypes"}) {
    for (const std::string verb : {"summary", "ls", "stat", "optim", "hash", "verify"}) {
      INFO(name << " " << verb);
      CommandOptions usual;
      usual.environment = {{"COLUMNS", "100"}};
      CHECK(longest_line(inspect({verb, case_path(name)}, usual).out) <= 100);
      CHECK(inspect({verb, case_path(name)}).out.find("…") == std::string::npos);
      CommandOptions narrow;
      narrow.environment = {{"COLUMNS", "80"}};
      if (verb == "summary")
        CHECK(longest_line(inspect({verb, case_path(name)}, narrow).out) <= 80);
    }
    const std::string summary = inspect({case_path(name)}).out;
    CHECK(std::count(summary.begin(), summary.end(), '\n') <= 40);
  }
  for (const std::string verb :
       {"summary", "ls", "show", "stat", "optim", "hash", "verify", "diff"}) {
    CHECK(longest_line(inspect({verb, "--help"}).out) <= 100);
  }
}

TEST_CASE("a pager gets what goes to a terminal, and nothing else") {
  const std::string path = case_path("dcp/fsdp2_w4");
  const std::map<std::string, std::string> pager{{"PAGER", "sed s/^/paged:/"}};
  const auto paged = [](const CommandResult& result) {
    return result.out.find("paged:") != std::string::npos;
  };
  CHECK(paged(inspect({path}, on_terminal(pager))));
  CHECK(paged(inspect({"ls", path}, on_terminal(pager))));  // written row by row
  CHECK(paged(inspect({"stat", "--help"}, on_terminal(pager))));
  CHECK_FALSE(paged(inspect({path, "--no-pager"}, on_terminal(pager))));
  CommandOptions piped;
  piped.environment = pager;
  CHECK_FALSE(paged(inspect({path}, piped)));
  std::map<std::string, std::string> dumb = pager;
  dumb["TERM"] = "dumb";
  CHECK_FALSE(paged(inspect({path}, on_terminal(dumb))));
  const std::string plain = inspect({path}, on_terminal({})).out;
  for (const char* none : {"", "cat", "no-such-program"})
    CHECK(inspect({path}, on_terminal({{"PAGER", none}})).out == plain);
}

TEST_CASE("a pager leaves the exit status alone, sees its variables, and may be left early") {
  const std::string path = case_path("dcp/fsdp2_w4");
  CHECK(inspect({"diff", path, case_path("torchsave/adamw_zip")},
                on_terminal({{"PAGER", "sed s/^/paged:/"}}))
            .exit == 1);
  CHECK(inspect({"ls", path}, on_terminal({{"PAGER", "true"}})).exit == 0);
  const auto less_is = [&](const std::map<std::string, std::string>& environment) {
    std::map<std::string, std::string> all = environment;
    all["PAGER"] = "/bin/sh -c 'cat > /dev/null; echo less=$LESS'";
    return inspect({path}, on_terminal(all)).out;
  };
  CHECK(less_is({}).find("less=FRX") != std::string::npos);
  CHECK(less_is({{"LESS", "-S"}}).find("less=-S") != std::string::npos);
}

TEST_CASE("help lists what most people need, and all of it where that is asked for") {
  using namespace tessera::tools;
  for (const Tool tool : {Tool::kInspect, Tool::kReshard, Tool::kConvert}) {
    const CommandSpec spec = command_spec(tool);
    std::vector<CommandSpec> all = spec.commands;
    if (all.empty()) all.push_back(spec);
    for (const CommandSpec& command : all) {
      INFO(command.name);
      const auto known = [&](const std::string& name) {
        return std::ranges::any_of(
            command.options, [&](const OptionSpec& option) { return option.names.back() == name; });
      };
      CHECK(command.first_options.size() <= 10);
      for (const std::string& name : command.first_options) CHECK(known(name));
      const std::string whole = render_help(command, "", 100, true);
      const std::string first = render_help(command, "", 100, false);
      for (const OptionSpec& option : command.options)
        CHECK(whole.find(option_heading(option)) != std::string::npos);
      for (const std::string& name : command.first_options)
        CHECK(first.find(name) != std::string::npos);
      if (!command.first_options.empty()) {
        CHECK(first.size() < whole.size());
        CHECK(first.find("--help-all") != std::string::npos);
        CHECK(first.find("--generate") == std::string::npos);
      }
    }
  }
  CHECK(convert({"--help"}).out.find("--optim-keys") == std::string::npos);
  CHECK(convert({"--help-all"}).out.find("--optim-keys") != std::string::npos);
  CHECK(inspect({"ls", "--help-all"}).out.find("--flat-layout") != std::string::npos);
}

TEST_CASE("a choice says what happens without it") {
  const std::string text = convert({"--help-all"}).out;
  for (const char* flag : {"--tied ", "--values ", "--opaque ", "--rank-state ", "--optim-keys ",
                           "--prefer ", "--optim ", "--verify", "--format "}) {
    INFO(flag);
    const std::size_t at = text.find(std::string("  ") + flag);
    REQUIRE(at != std::string::npos);
    const std::string entry = text.substr(at, text.find("\n  -", at + 3) - at);
    CHECK(entry.find("default") != std::string::npos);
  }
}

TEST_CASE("a closed pipe is exit 141 without a word") {
  CommandOptions closed;
  closed.close_stdout = true;
  const CommandResult result = inspect({"ls", case_path("dcp/fsdp2_w4")}, closed);
  CHECK(result.exit == 141);
  CHECK(result.err.empty());
}

TEST_CASE("help starts in 10 ms, or in ten times what an empty program takes") {
#ifdef NDEBUG
  const double plain = 0.010;
#else
  const double plain = 0.05;
#endif
  double limit = kSanitized ? 0.5 : plain;  // a sanitizer's own start is many times that
  double best = 1, empty = 1;  // where others have the processor, one in many is left alone
  for (int i = 0; i < 200 && best > limit; ++i) {
    best = std::min(best, inspect({"--help"}).seconds);
    empty = std::min(empty, run_command({"/bin/true"}).seconds);
  }
  limit = std::max(limit, 10 * empty);  // a slow machine
  CHECK(best <= limit);
}

TEST_CASE("no arguments print five example lines") {
  for (const auto& result : {inspect({}), reshard({}), convert({})}) {
    CHECK(result.exit == 0);
    CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 5);
    CHECK(result.out.starts_with("ckpt-"));
  }
}

}  // namespace terminal_test
