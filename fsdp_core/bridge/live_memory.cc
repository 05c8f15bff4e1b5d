#include "fsdp_core/bridge/live_memory.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/tensor/strides.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/params/outside_inference.h"
#include "fsdp_core/runtime/abort_peers.h"

namespace tessera::fsdp {
namespace {

/// The first element that differs in its bits (so that NaN equals itself), as "element 3 is 0.5 and
/// 0.25"; "": none.
std::string difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous().view({-1}), right = b.contiguous().view({-1});
  const auto* x = static_cast<const std::byte*>(left.const_data_ptr());
  const auto* y = static_cast<const std::byte*>(right.const_data_ptr());
  const std::size_t bytes = left.nbytes();
  if (bytes == 0 || std::memcmp(x, y, bytes) == 0) return {};
  const auto byte = std::mismatch(x, x + bytes, y).first - x;
  const std::int64_t element = byte / static_cast<std::int64_t>(left.element_size());
  return c10::str("element ", element, " is ", left[element].item(), " and ",
                  right[element].item());
}

std::vector<std::int64_t> sizes_of(const Shape& shape) {
  return {shape.extents().begin(), shape.extents().end()};
}

bool fits(const at::Tensor& tensor, const Chunk& chunk) {
  return tensor.is_cpu() && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.is_non_overlapping_and_dense() && (chunk.is_whole_box() || tensor.is_contiguous());
}

void check_fillable(const std::string& name, const at::Tensor& tensor) {
  if (tensor.numel() == 0 || elements_apart(tensor.sizes(), tensor.strides())) return;
  in_tensor(name, [&] {
    fail(Code::kInvalidArgument,
         fmt::format("elements of it share memory (strides [{}]), which cannot be filled",
                     fmt::join(tensor.strides(), ",")),
         "an expanded tensor needs memory of its own: register its contiguous() copy");
  });
}

/// Inference tensors as well, which LibTorch has filled in InferenceMode alone.
void fill_from(const at::Tensor& tensor, const at::Tensor& from) {
  std::optional<c10::InferenceMode> inference;
  if (tensor.is_inference()) inference.emplace();
  tensor.copy_(from);
}

/// Its memory was written to, past LibTorch. (Inference tensors count no versions.)
void count_version(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->version_counter().enabled()) impl->bump_version();
}

}  // namespace

LiveTensor LiveMemory::piece(const std::string& name, const at::Tensor& local, at::ScalarType dtype,
                             const Shape& shape, Chunk chunk, bool copied, bool is_buffer) {
  const OutsideInference outside;  // copies are filled again, by a later save or load
  Held held;
  held.name = name;
  held.tensor = local;
  held.is_buffer = is_buffer;
  if (copied || local.scalar_type() != dtype || !fits(local, chunk)) {
    held.copy = at::empty(local.sizes(),
                          at::TensorOptions(at::kCPU).dtype(dtype).pinned_memory(!local.is_cpu()));
    if (!held.staged()) held.copy.copy_(held.tensor);
  }
  const at::Tensor& memory = held.copy.defined() ? held.copy : held.tensor;
  LiveTensor out;
  out.spec = {dtype_of(dtype), shape};
  LivePiece piece;
  piece.data = memory.numel() == 0 ? nullptr : memory.mutable_data_ptr();
  if (chunk.is_whole_box() && !memory.is_contiguous()) piece.strides = memory.strides().vec();
  piece.chunk = std::move(chunk);
  const bool no_range = piece.chunk.numel() == 0 && !piece.chunk.box.empty();
  if (!no_range) out.pieces.push_back(std::move(piece));
  out.owner = std::make_shared<c10::Storage>(memory.storage());  // whatever becomes of the tensor
  out.copied_at_once = is_buffer;
  out.scratch = out.written_in_place = held.copy.defined();
  if ((!held.copy.defined() || held.staged()) && !is_buffer) watch_->add(name, held.tensor);
  held_.push_back(std::move(held));
  return out;
}

LiveTensor LiveMemory::name_apart(const std::string& name, const std::string& first,
                                  const at::Tensor& local, at::ScalarType dtype, const Shape& shape,
                                  Chunk chunk) {
  LiveTensor out = piece(name, local, dtype, shape, std::move(chunk), /*copied=*/true);
  held_.back().first = first;
  held_.back().apart = true;
  return out;
}

void LiveMemory::forget_ties() {
  std::erase_if(held_, [](const Held& held) { return held.apart; });
  for (Held& held : held_) held.first.clear();
}

void LiveMemory::tie(const std::string& second, const std::string& first) {
  for (Held& held : held_)
    if (held.spread && held.name == second) held.first = first;
}

LiveTensor LiveMemory::spread(const std::string& name, const at::Tensor& local, Spread spread,
                              bool fill) {
  const OutsideInference outside;
  const auto cpu = at::TensorOptions(at::kCPU).dtype(local.scalar_type());
  LiveTensor out;
  out.spec = {dtype_of(local.scalar_type()), Shape(spread.shape)};
  const Box box = spread.box();
  Held held;
  held.name = name;
  held.tensor = local;
  run_or_abort_peers({spread.unit}, "state_dict", [&] {
    if (fill) {
      const at::Tensor gathered = spread.gather(local);
      if (gathered.defined()) held.copy = gathered.to(cpu);
    } else if (spread.here()) {
      held.copy = at::empty(sizes_of(box.shape), cpu);
    }
  });
  if (held.copy.defined()) {
    void* data = held.copy.numel() == 0 ? nullptr : held.copy.mutable_data_ptr();
    out.pieces.push_back({Chunk::whole_of(box), data, {}});
    out.owner = std::make_shared<at::Tensor>(held.copy);
  }
  out.replicated = spread.form == Spread::Form::kWhole ||
                   (spread.form == Spread::Form::kRows && spread.shape.empty());
  out.scratch = out.written_in_place = true;
  held.spread = std::make_unique<const Spread>(std::move(spread));
  held_.push_back(std::move(held));
  return out;
}

void LiveMemory::check(const std::unordered_set<std::string>& loaded) const {
  for (const Held& second : held_) {
    if (!loaded.contains(second.name)) continue;
    check_fillable(second.name, second.tensor);
    if (second.first.empty()) continue;
    for (const Held& first : held_) {
      if (first.name != second.first || !loaded.contains(first.name)) continue;
      if (!first.copy.defined() || !second.copy.defined()) continue;
      if (const std::string found = difference(first.copy, second.copy); !found.empty())
        fail(
            Code::kCorrupt,
            fmt::format("\"{}\" and \"{}\" are one parameter here and differ in the checkpoint: {}",
                        first.name, second.name, found),
            "untie them in the model, or drop one name with policy.names");
    }
  }
}

void LiveMemory::refresh(StagedCopies& staged) {
  at::NoGradGuard no_grad;
  for (Held& held : held_) {
    if (!held.copy.defined() || held.spread) continue;
    if (held.staged())
      staged.add(held.tensor, held.copy, held.is_buffer);
    else
      held.copy.copy_(held.tensor);
  }
  watch_->restart();
}

void LiveMemory::scatter(const std::unordered_set<std::string>& loaded) {
  at::NoGradGuard no_grad;
  for (Held& held : held_) {
    held.shard.reset();
    if (!held.spread || !loaded.contains(held.name)) continue;
    if (!held.first.empty() && loaded.contains(held.first)) continue;
    run_or_abort_peers({held.spread->unit}, "load of a state dict", [&] {
      at::Tensor shard = at::empty_like(held.tensor);
      held.spread->scatter(held.copy, shard);
      held.shard = std::move(shard);
    });
  }
}

void LiveMemory::write_back(const std::unordered_set<std::string>& loaded) {
  at::NoGradGuard no_grad;
  for (Held& held : held_) {
    if (!loaded.contains(held.name)) continue;
    if (held.spread) {
      if (held.shard.defined()) fill_from(held.tensor, held.shard);
      held.shard.reset();
    } else if (!held.copy.defined()) {
      count_version(held.tensor);
    } else if (held.first.empty() || !loaded.contains(held.first)) {
      fill_from(held.tensor, held.copy);
    }
  }
}

}  // namespace tessera::fsdp
