#include "fsdp_core/bridge/staged_copies.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <exception>

namespace tessera::fsdp {

StagedCopies::~StagedCopies() {
  try {
    wait();
  } catch (const std::exception&) {
    // Whoever needs the values asks for them, and gets the error then.
  }
}

void StagedCopies::add(const at::Tensor& from, const at::Tensor& to, bool changes_in_forward) {
  copies_.push_back({from, to, changes_in_forward});
}

void StagedCopies::begin() {
  const at::NoGradGuard no_grad;
  std::vector<c10::Device> devices;  // one, as a rule
  for (const Copy& copy : copies_)
    if (std::ranges::find(devices, copy.from.device()) == devices.end())
      devices.push_back(copy.from.device());
  for (const c10::Device device : devices) {
    const auto streams = device_streams(device);
    const auto compute = streams->compute(), staging = streams->make("staging", false);
    staging->wait_for(*compute);
    for (const bool changes : {true, false}) {
      bool any = false;
      staging->run([&] {
        for (const Copy& copy : copies_) {
          if (copy.from.device() != device || copy.changes_in_forward != changes) continue;
          copy.to.copy_(copy.from, /*non_blocking=*/true);
          any = true;
        }
      });
      if (changes && any) compute->wait_for(*staging);
    }
    ends_.emplace_back(device, staging->record());
  }
}

void StagedCopies::wait() {
  for (const auto& [device, end] : ends_) {
    const c10::DeviceGuard guard(device);  // another thread's own is the first
    end.synchronize();
  }
  ends_.clear();
  copies_.clear();
}

}  // namespace tessera::fsdp
