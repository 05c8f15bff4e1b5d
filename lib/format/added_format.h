#pragma once
// A format in the table for a while: what a test of adding one needs.
#include <tessera/format/registry.h>

namespace tessera {

/// The format is the last of the table for as long as this lives. Not while another thread looks at
/// the table.
class AddedFormat {
 public:
  explicit AddedFormat(const FormatDriver& driver);
  ~AddedFormat();
  AddedFormat(const AddedFormat&) = delete;
  AddedFormat& operator=(const AddedFormat&) = delete;
};

}  // namespace tessera
