#pragma once
// What people type who know other tools, in this one's words. A path of that name wins.
//
//   --json            --format=json
//   -V                --version
//   help [VERB]       [VERB] --help
//   formats           --formats: what is read and written
//   info PATH         summary PATH
//   tree PATH         ls --tree PATH
//   SRC -o DST        SRC DST (ckpt-reshard, ckpt-convert)
#include <span>
#include <string>
#include <vector>

#include "tools/args/args.h"

namespace tessera::tools {

/// Nothing after "--" is changed.
std::vector<std::string> in_our_words(Tool tool, std::span<const std::string> typed);

}  // namespace tessera::tools
