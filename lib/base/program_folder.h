#pragma once
// Where the running program lies, or the shared library that another program loaded: helpers are
// looked for beside it.
#include <string>

namespace tessera {

/// Without a slash at the end. Links to the program are followed, but where /proc is not mounted:
/// there it is the folder that the program was started by, which may be relative. "" where that has
/// none.
std::string program_folder();

}  // namespace tessera
