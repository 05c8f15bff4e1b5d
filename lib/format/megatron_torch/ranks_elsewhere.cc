// A lone model_optim_rng.pt in some folder: whether it is the whole model, by what it holds.
#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <set>

#include "lib/format/megatron_torch/args.h"

namespace tessera {
namespace {

constexpr std::string_view kArgs = "args";

/// The job's arguments: an object, or a dict whose entries are those of the state.
megatron_torch::Args args_of(const StateDict& state) {
  ValueDict flat;
  for (const StateEntry& entry : state.entries) {
    if (entry.name == kArgs) return megatron_torch::Args(entry.value);
    if (entry.path.size() == 2 && is_key(entry.path[0], kArgs))
      flat.emplace_back(Value::string(entry.path[1].text()), entry.value);
  }
  return flat.empty() ? megatron_torch::Args() : megatron_torch::Args(Value::dict(std::move(flat)));
}

/// How many different N there are in "...layers.N.".
std::size_t layers_held(const Manifest& manifest) {
  constexpr std::string_view kLayers = "layers.";
  std::set<std::string_view> numbers;
  for (const StoredTensor& tensor : manifest.tensors) {
    std::string_view name = tensor.name;
    const std::size_t at = name.find(kLayers);
    if (at == name.npos || (at != 0 && name[at - 1] != '.')) continue;
    name.remove_prefix(at + kLayers.size());
    name = name.substr(0, name.find('.'));
    if (is_decimal(name)) numbers.insert(name);
  }
  return numbers.size();
}

/// Both dims in which ranks hold parts are as large as the arguments say the whole model is.
bool is_whole(const Manifest& manifest, const megatron_torch::Args& args) {
  const auto rows = args.integer("padded_vocab_size"), layers = args.integer("num_layers");
  const auto has_all_rows = [&](const StoredTensor& tensor) {
    return std::string_view(tensor.name).ends_with("word_embeddings.weight") &&
           tensor.spec.shape.rank() == 2 && tensor.spec.shape[0] == *rows;
  };
  return rows && layers && std::ranges::any_of(manifest.tensors, has_all_rows) &&
         static_cast<std::int64_t>(layers_held(manifest)) >= *layers;
}

bool holds_model(const StateDict& state) {
  return std::ranges::any_of(state.entries, [](const StateEntry& entry) {
    return entry.path.size() > 1 && entry.path[0].kind == PathItem::Kind::kKey &&
           (entry.path[0].key == "model" || entry.path[0].key == "model0");
  });
}

}  // namespace

std::string megatron_ranks_elsewhere(const Manifest& manifest) {
  const megatron_torch::Args args = args_of(manifest.state);
  if (!args.known() || !holds_model(manifest.state)) return "";
  constexpr std::array<std::string_view, 3> kSizes = {
      "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"};
  std::string sizes;
  for (const std::string_view name : kSizes) {
    const std::int64_t size = args.integer(name).value_or(1);
    if (size > 1) sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", name, size);
  }
  if (sizes.empty() || is_whole(manifest, args)) return "";
  return fmt::format("the files of the other ranks (its args say {})", sizes);
}

}  // namespace tessera
