#pragma once
// Backward watch: notifies a root when a backward through its outputs failed before any of its
// units took part: in the loss, in a hook on the model's output or on the very tensor that
// backward() is called on. Peers are in their units' backwards by then and would wait for this rank.
//
// Through the one place that every backward enters, LibTorch's engine: from the first forward that
// gradients can come through on, the process's default engine is one that hands every call to the
// engine that was there before, and looks at what it throws.
#include <memory>

#include "fsdp_core/runtime/use.h"

namespace tessera::fsdp::detail {

class Root;

/// A backward that goes through the outputs of `use` and throws calls root->backward_threw(). Any
/// thread; forgotten with the use.
void watch_backward(const std::shared_ptr<Root>& root, const std::shared_ptr<Use>& use);

}  // namespace tessera::fsdp::detail
