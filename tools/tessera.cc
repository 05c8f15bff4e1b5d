// One program for all commands. The name that it was called by (ckpt-inspect, a link to it), or
// else the first word (tessera inspect), says which one it is.
#include <tessera/base/text.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"
#include "tools/failure.h"
#include "tools/version.h"

namespace {

using tessera::tools::Tool;

// Before all other static objects; priorities up to 100 belong to the compiler.
__attribute__((constructor(101))) void before_static_objects() {
  tessera::tools::install_last_word();
}

constexpr std::string_view kUsage =
    "Usage: tessera COMMAND [OPTIONS] ...\n"
    "\n"
    "  inspect   look into, prove and compare checkpoints (ckpt-inspect)\n"
    "  reshard   move a checkpoint to another number of ranks (ckpt-reshard)\n"
    "  convert   move a checkpoint to another format (ckpt-convert)\n"
    "\n"
    "tessera COMMAND --help lists what each takes. The names in brackets are the same programs.\n";

std::optional<Tool> tool_named(std::string_view name) {
  constexpr std::string_view kPrefix = "ckpt-";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name == "inspect") return Tool::kInspect;
  if (name == "reshard") return Tool::kReshard;
  if (name == "convert") return Tool::kConvert;
  return std::nullopt;
}

int print(std::FILE* stream, std::string_view text, int status) {
  std::fwrite(text.data(), 1, text.size(), stream);
  return std::fflush(stream) == 0 ? status : 3;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> typed(argv, argv + argc);
  const std::string_view called = typed.empty() ? "tessera" : std::string_view(typed[0]);
  if (const auto tool = tool_named(called.substr(called.rfind('/') + 1)))
    return tessera::tools::run_tool(*tool, typed, 1);
  const std::string first = typed.size() > 1 ? typed[1] : "";
  if (const auto tool = tool_named(first)) return tessera::tools::run_tool(*tool, typed, 2);
  if (first == "--version" || first == "-V")
    return print(stdout, "tessera " + std::string(tessera::tools::kVersion) + "\n", 0);
  if (first == "--help" || first == "-h" || first == "help") return print(stdout, kUsage, 0);
  if (typed.size() > 1)
    std::fprintf(stderr, "tessera: there is no command \"%s\"\n\n",
                 tessera::printable(first).c_str());
  return print(stderr, kUsage, 2);
}
