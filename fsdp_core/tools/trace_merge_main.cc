// fsdp-trace-merge FOLDER: what the ranks' traces say about a hang. Exit: 0 done, 2 wrong use, 3 no
// traces, 4 a damaged one.
#include <tessera/base/error.h>
#include <tessera/fsdp/trace_merge.h>

#include <cstdio>
#include <string_view>

namespace {

int exit_code(tessera::Code code) {
  switch (code) {
    case tessera::Code::kNotFound:
    case tessera::Code::kIo:
      return 3;
    case tessera::Code::kCorrupt:
      return 4;
    default:
      return 70;
  }
}

}  // namespace

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
    return exit_code(error.code());
  }
}
