#include "fsdp_core/state_dict/transformed.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "fsdp_core/bridge/box_view.h"
#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/runtime/fail_together.h"
#include "fsdp_core/runtime/told_to_peers.h"

namespace tessera::fsdp {
namespace {

const Param& param_of(const ModelTensor& tensor) { return tensor.group->params()[tensor.index]; }

/// Where the parameter is registered, and as what.
struct Place {
  const torch::nn::Module* module;
  std::string name;
  std::string prefix;  // of the FQN, with its dot
};

Place place_of(const ModelTensor& tensor) {
  const auto dot = tensor.fqn.rfind('.');
  const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
  return {param_of(tensor).slots.front().module, tensor.fqn.substr(begin),
          tensor.fqn.substr(0, begin)};
}

std::vector<PartOf> stored_parts(const ModelTensor& tensor, const at::Tensor& whole) {
  const Place place = place_of(tensor);
  std::vector<StoredPart> parts =
      extension_of(tensor).post_unflatten(*place.module, place.name, whole);
  if (parts.empty())
    fail(Code::kInvalidArgument,
         fmt::format("post_unflatten of \"{}\" gives no part: it would be in no checkpoint",
                     tensor.fqn),
         "name it in Options::ignored_parameters to leave it out");
  std::vector<PartOf> out;
  for (StoredPart& part : parts) {
    if (!part.tensor.defined() || part.tensor.layout() != at::kStrided || part.name.empty())
      fail(Code::kInvalidArgument,
           fmt::format("post_unflatten of \"{}\" gives a part without name or dense tensor",
                       tensor.fqn));
    std::string fqn = place.prefix + part.name;
    out.push_back({std::move(part), std::move(fqn)});
  }
  return out;
}

/// Ranks that hold other parts would wait for each other.
void check_parts_alike(const ModelTensor& tensor, const std::vector<PartOf>& parts) {
  std::string lines;
  for (const PartOf& part : parts)
    lines +=
        fmt::format("\"{}\" {} {}\n", part.fqn, c10::toString(part.stored.tensor.scalar_type()),
                    Shape(part.stored.tensor.sizes().vec()).to_string());
  check_alike(communicators_of(tensor.unit->comms()), {tensor.unit->name(), CommPhase::kSummon},
              fmt::format("parts of \"{}\"", tensor.fqn), lines,
              "post_unflatten gives the same parts on all ranks");
}

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined() ? Shape(tensor.sizes().vec()).to_string() : "no tensor";
}

/// What the extension says.
bool asks_for_transform(const ModelTensor& tensor) {
  if (!tensor.unit || !tensor.is_parameter || !tensor.unit->options().extension) return false;
  const Place place = place_of(tensor);
  return extension_of(tensor).is_transformed(*place.module, place.name);
}

/// Every rank finds it alike.
void check_can_transform(const ModelTensor& tensor) {
  if (param_of(tensor).extension_dim)
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is a part of a larger tensor, and its extension transforms it: it is "
                     "whole on no rank",
                     tensor.fqn));
  if (param_of(tensor).slots.size() > 1)
    fail(
        Code::kUnsupported,
        fmt::format("\"{}\" is tied, and its extension transforms it: it would stand under several "
                    "names",
                    tensor.fqn));
}

}  // namespace

bool is_transformed(const ModelTensor& tensor) {
  if (!asks_for_transform(tensor)) return false;
  check_can_transform(tensor);
  return true;
}

bool is_transformed_told(const ModelTensor& tensor) {
  bool asks = false;
  if (tensor.unit)
    told_to_peers({tensor.unit}, "state_dict", [&] { asks = asks_for_transform(tensor); });
  if (asks) check_can_transform(tensor);
  return asks;
}

std::vector<PartOf> parts_like(const ModelTensor& tensor) {
  const at::NoGradGuard no_grad;
  return stored_parts(
      tensor, at::zeros(param_of(tensor).sizes, tensor.local.options().requires_grad(false)));
}

std::vector<TransformedParameters::Part> TransformedParameters::add(
    const ModelTensor& tensor, Spread::Form form,
    const std::function<std::string(const std::string&)>& named) {
  std::vector<Part> out;
  told_to_peers({tensor.unit}, "state_dict", [&] { out = add_parts(tensor, form, named); });
  return out;
}

std::vector<TransformedParameters::Part> TransformedParameters::add_parts(
    const ModelTensor& tensor, Spread::Form form,
    const std::function<std::string(const std::string&)>& named) {
  const at::NoGradGuard no_grad;
  Held held{tensor, Spread::of(tensor.unit, *tensor.group, tensor.index, form), {}, {}};
  const std::vector<PartOf> parts = stored_parts(tensor, held.spread.gather_whole(tensor.local));
  check_parts_alike(tensor, parts);
  std::vector<Part> out;
  for (const PartOf& part : parts) {
    const at::Tensor& whole = part.stored.tensor;
    HeldPart kept{part.stored.name, named(part.fqn), Shape(whole.sizes().vec()), {}, {}};
    Part made{part.fqn, std::nullopt};
    if (held.spread.here()) {
      if (form == Spread::Form::kRows) kept.chunks = chunks_of(tensor, part);
      Box box = Box::whole(kept.whole);
      if (!kept.chunks.empty())
        box = kept.chunks[static_cast<std::size_t>(tensor.unit->shard_comm().rank())];
      kept.copy = view_of(whole, box).clone(at::MemoryFormat::Contiguous).to(at::kCPU);
      LiveTensor live;
      live.spec = {dtype_of(kept.copy.scalar_type()), kept.whole};
      void* data = kept.copy.numel() == 0 ? nullptr : kept.copy.mutable_data_ptr();
      live.pieces.push_back({Chunk::whole_of(std::move(box)), data, {}});
      live.owner = std::make_shared<at::Tensor>(kept.copy);
      live.replicated =
          form != Spread::Form::kWholeOnFirstRank && (kept.chunks.empty() || tensor.replicated);
      live.is_parameter = true;
      live.scratch = true;
      made.live = std::move(live);
    }
    held.parts.push_back(std::move(kept));
    out.push_back(std::move(made));
  }
  held_.push_back(std::move(held));
  return out;
}

/// Collective where parts are cut.
std::vector<StoredPart> TransformedParameters::whole_parts(const Held& held) {
  std::vector<StoredPart> parts;
  for (const HeldPart& held_part : held.parts) {
    StoredPart part{held_part.part, held_part.copy.to(held.tensor.local.device())};
    if (!held_part.chunks.empty())
      part.tensor =
          extension_of(held.tensor)
              .gather(part, held_part.whole, held_part.chunks, held.spread.unit->shard_comm());
    if (!part.tensor.defined() || Shape(part.tensor.sizes().vec()) != held_part.whole)
      fail(Code::kInvalidArgument,
           fmt::format("gather of \"{}\": expected shape {}, found {}", held_part.name,
                       held_part.whole.to_string(), shape_text(part.tensor)));
    if (part.tensor.scalar_type() != held_part.copy.scalar_type())
      fail(Code::kInvalidArgument,
           fmt::format("gather of \"{}\": expected type {}, found {}", held_part.name,
                       c10::toString(held_part.copy.scalar_type()),
                       c10::toString(part.tensor.scalar_type())));
    parts.push_back(std::move(part));
  }
  return parts;
}

at::Tensor TransformedParameters::restored(const Held& held, const std::vector<StoredPart>& parts) {
  const Place place = place_of(held.tensor);
  at::Tensor out = extension_of(held.tensor).pre_load(*place.module, place.name, parts);
  const std::vector<std::int64_t>& wanted = held.spread.shape;
  if (!out.defined() || out.sizes() != at::IntArrayRef(wanted))
    fail(Code::kInvalidArgument,
         fmt::format("pre_load of \"{}\": expected shape {}, found {}", held.tensor.fqn,
                     Shape(wanted).to_string(), shape_text(out)));
  return out.to(held.tensor.local.device(), held.tensor.local.scalar_type()).contiguous();
}

void TransformedParameters::check(const std::unordered_set<std::string>& loaded) {
  const at::NoGradGuard no_grad;
  std::exception_ptr first;  // told when the collectives of all are over: other ranks take part
  const auto attempt = [&](const std::function<void()>& f) {
    try {
      f();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  for (Held& held : held_) {
    held.made.reset();
    const auto count = std::ranges::count_if(
        held.parts, [&](const HeldPart& part) { return loaded.contains(part.name); });
    if (count == 0) continue;
    if (static_cast<std::size_t>(count) != held.parts.size()) {
      const auto absent = std::ranges::find_if_not(
          held.parts, [&](const HeldPart& part) { return loaded.contains(part.name); });
      attempt([&] {
        fail(Code::kInvalidArgument,
             fmt::format(
                 "\"{}\" cannot be made of a part of what stands for it: \"{}\" was not loaded",
                 held.tensor.fqn, absent->name));
      });
      continue;
    }
    Spread back = held.spread;
    if (back.form == Spread::Form::kRows) back.form = Spread::Form::kWhole;
    held.made = at::empty_like(held.tensor.local);
    told_to_peers({back.unit}, "load of a state dict", [&] {
      at::Tensor whole;
      if (held.spread.here()) {
        const std::vector<StoredPart> parts = whole_parts(held);
        attempt([&] { whole = restored(held, parts); });
        if (!whole.defined()) whole = at::zeros(held.spread.shape, held.tensor.local.options());
      }
      back.scatter(whole, held.made);
    });
  }
  if (first) std::rethrow_exception(first);
}

void TransformedParameters::write_back() {
  const at::NoGradGuard no_grad;
  for (Held& held : held_)
    if (held.made.defined()) held.tensor.local.copy_(held.made);
}

}  // namespace tessera::fsdp
