#include "lib/format/deepspeed_zero/pipeline_layout.h"

#include <tessera/encoding/json.h>

#include "lib/state/fields.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kLayout = "writer.deepspeed.pipeline";
constexpr std::string_view kStages = "stages";
constexpr std::string_view kLayers = "layers";

Value list_of(const PipelineLayout::Names& names) {
  ValueList out;
  for (const std::string& name : names) out.push_back(Value::string(name));
  return Value::list(std::move(out));
}

}  // namespace

void keep_layout(Manifest& manifest, const PipelineLayout& layout) {
  ValueList stages;
  for (const auto& stage : layout.stages) {
    ValueList groups;
    for (const PipelineLayout::Names& names : stage) groups.push_back(list_of(names));
    stages.push_back(Value::list(std::move(groups)));
  }
  ValueDict layers;
  for (const PipelineLayout::Layer& layer : layout.layers) {
    ValueDict entries;
    for (const auto& [key, name] : layer.entries)
      entries.emplace_back(Value::string(key), Value::string(name));
    layers.emplace_back(Value::string(layer.file), Value::dict(std::move(entries)));
  }
  manifest.provenance[std::string(kLayout)] = dump_json(
      Value::dict({{Value::string(std::string(kStages)), Value::list(std::move(stages))},
                   {Value::string(std::string(kLayers)), Value::dict(std::move(layers))}}));
}

std::optional<PipelineLayout> kept_layout(const Manifest& manifest) {
  const auto found = manifest.provenance.find(std::string(kLayout));
  if (found == manifest.provenance.end()) return std::nullopt;
  PipelineLayout layout;
  const Value root = parse_json(as_bytes(found->second));
  for (const Value& stage : Field(root).at(kStages).value().as_list()) {
    auto& groups = layout.stages.emplace_back();
    for (const Value& group : stage.as_list()) {
      PipelineLayout::Names& names = groups.emplace_back();
      for (const Value& name : group.as_list()) names.push_back(name.as_string());
    }
  }
  for (const auto& [file, entries] : Field(root).at(kLayers).value().as_dict()) {
    PipelineLayout::Layer& layer = layout.layers.emplace_back();
    layer.file = file.as_string();
    for (const auto& [key, name] : entries.as_dict())
      layer.entries.emplace_back(key.as_string(), name.as_string());
  }
  return layout;
}

}  // namespace tessera::deepspeed
