#include "fsdp_core/state_dict/transformed.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "fsdp_core/bridge/box_view.h"
#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/runtime/abort_peers.h"
#include "fsdp_core/runtime/fail_together.h"

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
              "post_unflatten must give the same parts on all ranks");
}

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined() ? Shape(tensor.sizes().vec()).to_string() : "no tensor";
}

/// Every rank finds it alike.
void check_can_transform(const ModelTensor& tensor) {
  if (param_of(tensor).extension_dim)
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is a part of a larger tensor, and its extension transforms it: it is "
                     "whole on no rank",
                     tensor.fqn));
  if (param_of(tensor).slots.size() > 1 || tensor.tied_to)
    fail(
        Code::kUnsupported,
        fmt::format("\"{}\" is tied, and its extension transforms it: it would stand under several "
                    "names",
                    tensor.fqn));
}

}  // namespace

bool is_transformed(const ModelTensor& tensor) {
  if (!tensor.unit || !tensor.is_parameter || !tensor.unit->options().extension) return false;
  const Place place = place_of(tensor);
  if (!extension_of(tensor).is_transformed(*place.module, place.name)) return false;
  check_can_transform(tensor);
  return true;
}

std::vector<PartOf> parts_like(const ModelTensor& tensor) {
  const at::NoGradGuard no_grad;
  return stored_parts(
      tensor, at::zeros(param_of(tensor).sizes, tensor.local.options().requires_grad(false)));
}

std::vector<TransformedParameters::Part> TransformedParameters::add(
    const ModelTensor& tensor, Spread::Form form,
    const std::function<std::string(const std::string&)>& named) {
  const at::NoGradGuard no_grad;
  const auto together = [&](const std::function<void()>& body) {
    fail_together(communicators_of(tensor.unit->comms()),
                  {"state_dict", {tensor.unit->name(), CommPhase::kSummon}, ""}, body);
  };
  Held held{tensor, Spread::of(tensor.unit, *tensor.group, tensor.index, form), {}, {}};
  at::Tensor whole;
  run_or_abort_peers({tensor.unit}, "state_dict",
                     [&] { whole = held.spread.gather_whole(tensor.local); });
  std::vector<PartOf> parts;
  together([&] { parts = stored_parts(tensor, whole); });
  together([&] { check_parts_alike(tensor, parts); });
  std::vector<std::vector<Box>> chunks(parts.size());
  if (form == Spread::Form::kRows) chunks = chunks_of(tensor, parts);
  std::vector<Part> out;
  together([&] {
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const at::Tensor& all = parts[p].stored.tensor;
      held.parts.push_back({parts[p].stored.name,
                            named(parts[p].fqn),
                            Shape(all.sizes().vec()),
                            std::move(chunks[p]),
                            {}});
      out.push_back({parts[p].fqn, keep(held, held.parts.back(), all)});
    }
  });
  held_.push_back(std::move(held));
  return out;
}

/// This rank's copy of its chunk of a part, or of all of it; nullopt: nothing of it is here.
std::optional<LiveTensor> TransformedParameters::keep(const Held& held, HeldPart& kept,
                                                      const at::Tensor& whole) {
  if (!held.spread.here()) return std::nullopt;
  Box box = Box::whole(kept.whole);
  if (!kept.chunks.empty())
    box = kept.chunks[static_cast<std::size_t>(held.spread.comms().shard->rank())];
  kept.copy = view_of(whole, box).clone(at::MemoryFormat::Contiguous).to(at::kCPU);
  LiveTensor live;
  live.spec = {dtype_of(kept.copy.scalar_type()), kept.whole};
  void* data = kept.copy.numel() == 0 ? nullptr : kept.copy.mutable_data_ptr();
  live.pieces.push_back({Chunk::whole_of(std::move(box)), data, {}});
  live.owner = std::make_shared<at::Tensor>(kept.copy);
  live.replicated = held.spread.form == Spread::Form::kWholeOnFirstRank
                        ? held.tensor.same_across_extension
                        : kept.chunks.empty() || held.tensor.replicated;
  live.is_parameter = true;
  live.scratch = true;
  return live;
}

/// Collective where parts are cut.
std::vector<StoredPart> TransformedParameters::gathered_parts(const Held& held) {
  std::vector<StoredPart> parts;
  for (const HeldPart& held_part : held.parts) {
    StoredPart part{held_part.part, held_part.copy.to(held.spread.device())};
    if (!held_part.chunks.empty())
      part.tensor =
          extension_of(held.tensor)
              .gather(part, held_part.whole, held_part.chunks, *held.spread.comms().shard);
    parts.push_back(std::move(part));
  }
  return parts;
}

void TransformedParameters::check_gathered(const Held& held, const std::vector<StoredPart>& parts) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const HeldPart& wanted = held.parts[p];
    const at::Tensor& found = parts[p].tensor;
    if (!found.defined() || Shape(found.sizes().vec()) != wanted.whole)
      fail(Code::kInvalidArgument,
           fmt::format("gather of \"{}\": expected shape {}, found {}", wanted.name,
                       wanted.whole.to_string(), shape_text(found)));
    if (found.scalar_type() != wanted.copy.scalar_type())
      fail(Code::kInvalidArgument,
           fmt::format("gather of \"{}\": expected type {}, found {}", wanted.name,
                       c10::toString(wanted.copy.scalar_type()),
                       c10::toString(found.scalar_type())));
  }
}

at::Tensor TransformedParameters::restored(const Held& held, const std::vector<StoredPart>& parts) {
  const Place place = place_of(held.tensor);
  at::Tensor out = extension_of(held.tensor).pre_load(*place.module, place.name, parts);
  const std::vector<std::int64_t>& wanted = held.spread.shape;
  if (!out.defined() || out.sizes() != at::IntArrayRef(wanted))
    fail(Code::kInvalidArgument,
         fmt::format("pre_load of \"{}\": expected shape {}, found {}", held.tensor.fqn,
                     Shape(wanted).to_string(), shape_text(out)));
  const at::ScalarType type = held.tensor.local.scalar_type();
  const bool floating = at::isFloatingType(type) && at::isFloatingType(out.scalar_type());
  if (out.scalar_type() != type && !floating)
    fail(Code::kInvalidArgument,
         fmt::format("pre_load of \"{}\": expected type {}, found {}", held.tensor.fqn,
                     c10::toString(type), c10::toString(out.scalar_type())));
  return out.to(held.spread.device(), type).contiguous();
}

void TransformedParameters::check(const std::unordered_set<std::string>& loaded) {
  const at::NoGradGuard no_grad;
  constexpr char kCall[] = "load of a state dict";
  for (Held& held : held_) {
    held.made.reset();
    const auto is_loaded = [&](const HeldPart& part) { return loaded.contains(part.name); };
    if (std::ranges::none_of(held.parts, is_loaded)) continue;
    if (const auto absent = std::ranges::find_if_not(held.parts, is_loaded);
        absent != held.parts.end())
      fail(Code::kInvalidArgument, fmt::format("\"{}\" cannot be rebuilt: \"{}\", one of the "
                                               "tensors it is stored as, was not loaded",
                                               held.tensor.fqn, absent->name));
    const std::shared_ptr<detail::Unit>& unit = held.spread.unit;
    const bool here = held.spread.here();
    std::vector<StoredPart> parts;
    if (here) run_or_abort_peers({unit}, kCall, [&] { parts = gathered_parts(held); });
    Spread back = held.spread;
    if (back.form == Spread::Form::kRows) back.form = Spread::Form::kWhole;
    at::Tensor whole, made;
    fail_together(communicators_of(unit->comms()), {kCall, {unit->name(), CommPhase::kSummon}, ""},
                  [&] {
                    made = at::empty_like(held.tensor.local);
                    if (!here) return;
                    check_gathered(held, parts);
                    whole = restored(held, parts);
                  });
    run_or_abort_peers({unit}, kCall, [&] { back.scatter(whole, made); });
    held.made = std::move(made);
  }
}

void TransformedParameters::write_back() {
  const at::NoGradGuard no_grad;
  for (Held& held : held_)
    if (held.made.defined()) held.tensor.local.copy_(held.made);
}

}  // namespace tessera::fsdp
