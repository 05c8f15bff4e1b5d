#pragma once
// Files of a set that cannot be read count as lost (ArchiveManifestBuilder::try_open()). Where that
// leaves nothing at all, why the first of them could not be read is what is thrown.
#include <tessera/base/error.h>

#include <optional>

namespace tessera {

class FirstReason {
 public:
  void add(const Status& why) {
    if (!why_) why_ = why;
  }
  const std::optional<Status>& why() const { return why_; }
  /// Precondition: there is one.
  [[noreturn]] void raise() const {
    TESSERA_CHECK(why_);
    throw Error(*why_);
  }
  void raise_if_any() const {
    if (why_) raise();
  }

 private:
  std::optional<Status> why_;
};

}  // namespace tessera
