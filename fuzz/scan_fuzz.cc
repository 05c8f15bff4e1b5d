// Any bytes as a file that scan looks into, by several names: a verdict, never an exception, and
// never safe where the pickle in it calls what runs programs.
#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"
#include "lib/ops/scan/content.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_archive)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile file(data, size);
  for (const char* name : {"x.pt", "x.distcp", "x.json", "x.pb", "x.yaml", "x"}) {
    ScannedFile out;
    ContentScanner(out, kMiB).scan_file(ByteWindow::whole(file), name, nullptr);
    Safety worst = Safety::kSafe;
    for (const ScanFinding& finding : out.findings) worst = std::max(worst, finding.safety);
    if (!out.findings.empty() && out.safety != worst) std::abort();
  }
  return 0;
}
