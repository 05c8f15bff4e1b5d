// Lists the tensors of any checkpoint: what the first example of <tessera/tessera.h> does.
//
//   inspect run/step_100
#include <tessera/tessera.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  if (argc != 2) return std::fputs("usage: inspect PATH\n", stderr), 2;
  auto files = tessera::make_posix_file_system();
  tessera::OpenedCheckpoint checkpoint = tessera::open_checkpoint(*files, argv[1]);
  for (const tessera::StoredTensor& tensor : checkpoint.manifest.tensors)
    std::puts((tensor.name + " " + tensor.spec.to_string()).c_str());
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "inspect: %s\n", error.what()), 1;
}
