// fsdp-trace-merge FOLDER: what the ranks' traces say about a hang. Exit: 0 done, 2 wrong use, 3 no
// traces, 4 a damaged one.
#include <tessera/base/error.h>
#include <tessera/fsdp/trace_merge.h>

#include <cstdio>
#include <string_view>

#include "fsdp_core/tools/exit_code.h"

int main(int argc, char** argv) {
  const std::string_view argument = argc == 2 ? argv[1] : "";
  if (argument == "--help") {
    std::puts(
        "usage: fsdp-trace-merge FOLDER\n"
        "Reads the rank<N>.json that ranks wrote when a collective failed, and names the first\n"
        "collective that they did not do alike and the ranks that wrote nothing.");
    return 0;
  }
  if (argument.empty() || argument.starts_with("-")) {
    std::fputs("usage: fsdp-trace-merge FOLDER\n", stderr);
    return 2;
  }
  try {
    std::fputs(tessera::fsdp::merge_traces(argv[1]).to_string().c_str(), stdout);
    return 0;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "fsdp-trace-merge: %s\n", error.what());
    return tessera::fsdp::exit_code(error.code());
  }
}
