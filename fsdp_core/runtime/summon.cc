#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>

#include "fsdp_core/params/registry.h"
#include "fsdp_core/runtime/abort_peers.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {

struct SummonFullParams::Impl {
  SummonOptions options;
  std::vector<std::shared_ptr<detail::Unit>> units;
  bool open = true;

  void begin();
  void end();
};

void SummonFullParams::Impl::begin() {
  for (const auto& unit : units)
    unit->summon(options.rank0_only, options.offload_to_cpu, /*full_precision=*/!options.cast);
  if (!options.with_grads) return;
  for (const auto& unit : units) unit->summon_gradients(options.rank0_only, options.offload_to_cpu);
}

void SummonFullParams::Impl::end() {
  if (!open) return;
  open = false;
  for (const auto& unit : units) unit->end_summon(options.write_back);
  release_cached_memory();  // all units at once are more than a step needs
}

SummonFullParams::SummonFullParams(const ModuleRef& module, const SummonOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (options.rank0_only && options.write_back)
    fail(Code::kInvalidArgument,
         "SummonFullParams: rank0_only with write_back: other ranks' parts would be lost",
         "set write_back = false");
  if (options.cast && options.write_back)
    fail(Code::kInvalidArgument,
         "SummonFullParams: cast with write_back: the shards would be rounded to the dtype that a "
         "forward computes in",
         "set write_back = false");
  impl_->options = options;
  impl_->units = idle_units_of(module, "SummonFullParams", options.recurse);
  run_or_abort_peers(impl_->units, "summon", [this] { impl_->begin(); });
}

SummonFullParams::~SummonFullParams() {
  try {
    impl_->end();
  } catch (const std::exception& error) {
    // A destructor cannot throw; finish() does. The unit refuses to run until reset.
    for (const auto& unit : impl_->units)
      unit->root()->fail_step(current_exception_status(), false);
  }
}

void SummonFullParams::finish() { impl_->end(); }

}  // namespace tessera::fsdp
