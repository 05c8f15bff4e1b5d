#pragma once
// The tensors of one parameter. Everywhere else "compute parameter", "shard parameter", ... mean
// these.
//
// clang-format off
//   compute parameter    full shape. The user's own TensorImpl for ever: the handle in his module. Over real
//                        memory while unsharded, over poison while sharded: touching it then raises an error
//                        that names it. Its .grad is a view of the unsharded gradient buffer in backward, and
//                        outside of its unit one that raises an error: only an optimizer that was built before
//                        fully_shard looks there.
//   shard parameter      this rank's part, without padding: 1-D (flat layout) or rows (per-parameter layout);
//                        empty where the rank holds none. What the module's registry shows while sharded, and
//                        what the optimizer holds. A slice of the group's shard buffer with a version counter
//                        of its own, no autograd view; records that data() was taken (shard_tensor.h).
//   unsharded buffer     what the compute parameter lies in while unsharded: one per group (flat) or one per
//                        parameter. A storage refilled for ever; no memory while sharded.
//   unsharded gradient   as the unsharded buffer, in the reduce dtype; lives in backward.
//   shard gradient       as the shard parameter; a slice of the group's shard gradient buffer, no autograd view.
// clang-format on
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

struct Param {
  /// A place in a module's registry that shows this parameter; several where it is tied within its
  /// unit.
  struct Slot {
    torch::nn::Module* module = nullptr;
    std::size_t index = 0;  // in its registry
    std::string fqn;        // from the unit's module
    std::size_t of = 0;     // ... of that number, where the unit has several
  };

  std::string
      fqn;  // of its first slot, from the unit's module until the root is known, then from the root
  std::vector<Slot> slots;
  std::vector<std::int64_t> sizes;
  at::Tensor compute;
  at::Tensor shard;
  c10::Storage poison;
  at::Tensor grad_view;              // into the unsharded gradient buffer, shape `sizes`
  at::Tensor shard_grad;             // cached slice that becomes shard.grad
  std::optional<int> extension_dim;  // of this dim it is a part, by its unit's extension
  bool requires_grad = true;         // as last agreed between the two identities
  bool used = false;                 // its gradient was produced in this backward
};

}  // namespace tessera::fsdp
