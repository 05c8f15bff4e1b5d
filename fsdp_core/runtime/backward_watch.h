#pragma once
// Backward watch: tells a root that a backward through its outputs has begun, before any unit takes
// part in it. A failure on the way there (in the loss, in a hook on the model's output) then counts
// as the failed backward it is.
//
// Through LibTorch's observer of autograd nodes, on from the end of a forward until its backward
// begins. What it cannot see: hooks on the tensor that backward() is called on, which run before
// the first node does.
#include <memory>

#include "fsdp_core/unit/use.h"

namespace tessera::fsdp::detail {

class Root;

/// The first backward that goes through the outputs of `use` calls root->backward_began() from its
/// first node. Any thread.
void watch_backward(const std::shared_ptr<Root>& root, const std::shared_ptr<Use>& use);

}  // namespace tessera::fsdp::detail
