#pragma once
// What differential_reader says of whole checkpoints, opened as the commands open them.
#include <string>

namespace tessera::test {

/// A folder of DCP: paths and contents, each behind its length (32 bits).
std::string describe_folder(const std::string& packed);
std::string describe_hdf5(const std::string& file);

}  // namespace tessera::test
