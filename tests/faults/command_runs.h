#pragma once
// What tests of whole commands under faults share: commands that write, and what is there after
// them.
#include <map>
#include <string>
#include <vector>

#include "tests/support/run_command.h"

namespace tessera::faults {

/// Every file below `path` with its bytes, or the file itself under the name "".
std::map<std::string, std::string> tree(const std::string& path);

/// Exit status and stderr in a line, for messages of tests.
std::string described(const testing::CommandResult& result);

/// Hidden names directly in `folder`, as a stage is; they are removed.
std::string take_leftovers(const testing::QuickFolder& folder);

/// A command that writes `output` in the folder it was made for, replacing what is there.
struct Writing {
  std::string name, output;
  std::vector<std::string> words;
};

/// A reshard to a folder and a conversion to one file.
std::vector<Writing> writings(const testing::QuickFolder& folder, const std::string& threads);

}  // namespace tessera::faults
