#include "fsdp_core/state_dict/transformed.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/runtime/told_to_peers.h"

namespace tessera::fsdp {
namespace {

const Param& param_of(const ModelTensor& tensor) { return tensor.group->params()[tensor.index]; }

const Extension& extension_of(const ModelTensor& tensor) {
  return *tensor.unit->options().extension;
}

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

std::vector<StoredPart> stored_parts(const ModelTensor& tensor, const at::Tensor& whole) {
  const Place place = place_of(tensor);
  std::vector<StoredPart> parts =
      extension_of(tensor).post_unflatten(*place.module, place.name, whole);
  for (StoredPart& part : parts) {
    if (!part.tensor.defined() || part.tensor.layout() != at::kStrided || part.name.empty())
      fail(Code::kInvalidArgument,
           fmt::format("post_unflatten of \"{}\" gives a part without name or dense tensor",
                       tensor.fqn));
    part.name = place.prefix + part.name;
  }
  return parts;
}

}  // namespace

bool is_transformed(const ModelTensor& tensor) {
  if (!tensor.unit || !tensor.is_parameter || !tensor.unit->options().extension) return false;
  const Place place = place_of(tensor);
  if (!extension_of(tensor).is_transformed(*place.module, place.name)) return false;
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
  return true;
}

std::vector<StoredPart> parts_like(const ModelTensor& tensor) {
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
  const at::Tensor whole = held.spread.gather_whole(tensor.local);
  std::vector<Part> out;
  for (const StoredPart& part : stored_parts(tensor, whole)) {
    const std::string own = part.name.substr(place_of(tensor).prefix.size());
    HeldPart kept{own, named(part.name), part.tensor.sizes().vec(), {}};
    Part made{part.name, std::nullopt};
    if (held.spread.here()) {
      const bool rows = form == Spread::Form::kRows && part.tensor.dim() > 0;
      kept.copy = (rows ? held.spread.rows_of(part.tensor) : part.tensor)
                      .to(at::kCPU)
                      .clone(at::MemoryFormat::Contiguous);
      LiveTensor live;
      live.spec = {dtype_of(kept.copy.scalar_type()), Shape(kept.whole)};
      Box box = Box::whole(live.spec.shape);
      if (rows) {
        box.shape = Shape(kept.copy.sizes().vec());
        box.origin[0] = even_rows(kept.whole, static_cast<int>(held.spread.ranges.size()),
                                  tensor.unit->shard_comm().rank())
                            .begin;
      }
      void* data = kept.copy.numel() == 0 ? nullptr : kept.copy.mutable_data_ptr();
      live.pieces.push_back({Chunk::whole_of(std::move(box)), data, {}});
      live.owner = std::make_shared<at::Tensor>(kept.copy);
      live.replicated = form != Spread::Form::kWholeOnFirstRank && (!rows || tensor.replicated);
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

at::Tensor TransformedParameters::restored(const Held& held) {
  std::vector<StoredPart> parts;
  for (const HeldPart& part : held.parts) {
    at::Tensor whole = part.copy.to(held.tensor.local.device());
    if (held.spread.form == Spread::Form::kRows) whole = held.spread.join_rows(whole, part.whole);
    parts.push_back({part.part, std::move(whole)});
  }
  const Place place = place_of(held.tensor);
  at::Tensor out = extension_of(held.tensor).pre_load(*place.module, place.name, parts);
  const std::vector<std::int64_t>& wanted = held.spread.shape;
  if (!out.defined() || out.sizes() != at::IntArrayRef(wanted))
    fail(Code::kInvalidArgument,
         fmt::format("pre_load of \"{}\": expected shape {}, found {}", held.tensor.fqn,
                     Shape(wanted).to_string(),
                     out.defined() ? Shape(out.sizes().vec()).to_string() : "no tensor"));
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
    at::Tensor whole;
    if (held.spread.here()) {
      attempt([&] { whole = restored(held); });
      if (!whole.defined()) whole = at::zeros(held.spread.shape, held.tensor.local.options());
    }
    told_to_peers({back.unit}, "load of a state dict", [&] { back.scatter(whole, held.made); });
  }
  if (first) std::rethrow_exception(first);
}

void TransformedParameters::write_back() {
  const at::NoGradGuard no_grad;
  for (Held& held : held_)
    if (held.made.defined()) held.tensor.local.copy_(held.made);
}

}  // namespace tessera::fsdp
