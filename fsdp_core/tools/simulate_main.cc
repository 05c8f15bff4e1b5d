// fsdp-simulate MODEL.json [--trace FILE] [--svg FILE]: what a step would cost. Exit: 0 done, 2 wrong use,
// 3 no such file, 4 no JSON, 70 an error of ours.
#include <tessera/base/error.h>
#include <tessera/fsdp/simulate.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "fsdp_core/tools/exit_code.h"

namespace {

constexpr const char* kUsage = "usage: fsdp-simulate MODEL.json [--trace FILE] [--svg FILE]\n";

struct Wanted {
  std::string model;
  std::optional<std::string> trace, svg;
};

std::optional<Wanted> read(int argc, char** argv) {
  Wanted wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--trace" || argument == "--svg") {
      if (++i == argc) return std::nullopt;
      (argument == "--svg" ? wanted.svg : wanted.trace) = argv[i];
    } else if (argument.starts_with("-") || !wanted.model.empty()) {
      return std::nullopt;
    } else {
      wanted.model = argument;
    }
  }
  if (wanted.model.empty()) return std::nullopt;
  return wanted;
}

void write(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) tessera::fail(tessera::Code::kIo, file + " cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    std::fputs(kUsage, stdout);
    std::fputs(
        "Runs the FSDP runtime on a model of {units, bytes, flops} and a virtual clock, and "
        "prints\n"
        "step time, exposed communication and peak memory. --trace writes the timeline for\n"
        "chrome://tracing or Perfetto, --svg as a picture. The fields: docs/simulate.md.\n",
        stdout);
    return 0;
  }
  const std::optional<Wanted> wanted = read(argc, argv);
  if (!wanted) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    const auto step = tessera::fsdp::simulate(tessera::fsdp::read_job(wanted->model));
    if (wanted->trace) write(*wanted->trace, tessera::fsdp::chrome_trace(step));
    if (wanted->svg) write(*wanted->svg, tessera::fsdp::to_svg(step));
    std::fputs(step.to_string().c_str(), stdout);
    return 0;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "fsdp-simulate: %s\n", error.what());
    return tessera::fsdp::exit_code(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp-simulate: %s\n", error.what());
    return 70;
  }
}
