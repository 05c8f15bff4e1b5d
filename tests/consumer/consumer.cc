// Opens a checkpoint through the library and prints what it holds.
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto fs = tessera::make_posix_file_system();
  tessera::OpenedCheckpoint checkpoint = tessera::open_checkpoint(*fs, argv[1]);
  tessera::HashReport report = tessera::hash_checkpoint(checkpoint);
  std::printf("%s: %zu tensors, root %s\n", report.format.c_str(), report.tensors.size(),
              report.root.c_str());
  return report.tensors.empty();
}
