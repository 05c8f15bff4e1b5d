#include "tools/command.h"

int main(int argc, char** argv) {
  return tessera::tools::run_tool(tessera::tools::Tool::kConvert, argc, argv);
}
