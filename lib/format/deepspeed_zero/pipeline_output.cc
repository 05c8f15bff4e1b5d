#include "lib/format/deepspeed_zero/pipeline_output.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <set>
#include <unordered_map>

#include "lib/format/deepspeed_zero/state_assembler.h"

namespace tessera::deepspeed {
namespace {

[[noreturn]] void refuse_other_state(const std::string& why) {
  fail(Code::kUnsupported,
       "the state is no longer what the pipeline's stages and layers were made of: " + why,
       "write it as it was read, or write torch-dcp or torch-save, or the weights with --to hf");
}

}  // namespace

std::vector<Target> stage_targets(const SourceState& state, const Target& whole,
                                  const PipelineLayout& layout) {
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> places;
  for (std::size_t g = 0; g < state.groups.size(); ++g)
    for (std::size_t i = 0; i < state.groups[g].parameters.size(); ++i)
      places.emplace(state.groups[g].parameters[i].name, std::pair(g, i));
  std::set<std::string> used;
  std::vector<Target> stages;
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    Target stage = whole;
    stage.buffers.clear();
    stage.pipeline_stage = static_cast<std::int64_t>(s);
    stage.pipeline_stages = static_cast<std::int64_t>(layout.stages.size());
    for (const PipelineLayout::Names& names : layout.stages[s]) {
      Target::Buffer buffer;
      for (const std::string& name : names) {
        const auto place = places.find(name);
        if (place == places.end())
          refuse_other_state(
              fmt::format("\"{}\" is missing among what is trained", printable(name)));
        if (buffer.parameters.empty()) buffer.group = place->second.first;
        if (place->second.first != buffer.group)
          refuse_other_state(fmt::format("\"{}\" is in another group of the optimizer than \"{}\"",
                                         printable(name), printable(names[0])));
        buffer.parameters.push_back(place->second.second);
        used.insert(name);
      }
      if (!buffer.parameters.empty()) stage.buffers.push_back(std::move(buffer));
    }
    stages.push_back(std::move(stage));
  }
  for (const auto& [name, place] : places)
    if (!used.contains(name))
      refuse_other_state(fmt::format("no stage trains \"{}\"", printable(name)));
  return stages;
}

std::vector<ArchiveFile> layer_files(const Manifest& source, const SourceState& state,
                                     const Target& target, const PipelineLayout& layout) {
  const auto copies = module_copies(source);
  std::unordered_map<std::string, const ModuleEntry*> entries;
  for (const ModuleEntry& entry : state.module) entries.emplace(entry.name, &entry);
  std::unordered_map<std::string, const Value*> values;
  for (const auto& [name, value] : state.module_values) values.emplace(name, &value);
  std::set<std::string> used;
  std::vector<ArchiveFile> files;
  for (const PipelineLayout::Layer& layer : layout.layers) {
    ArchiveDraft builder(source, draft_rules(state));
    ValueDict dict;
    for (const auto& [key, name] : layer.entries) {
      used.insert(name);
      if (const auto value = values.find(name); value != values.end()) {
        dict.emplace_back(Value::string(key), builder.take(*value->second));
        continue;
      }
      const auto entry = entries.find(name);
      if (entry == entries.end())
        refuse_other_state(fmt::format("\"{}\" is missing", printable(name)));
      const auto copy = copies.find(name);
      dict.emplace_back(Value::string(key),
                        builder.whole(copy == copies.end() ? entry->second->tensor : copy->second));
    }
    files.push_back(
        builder.finish(target.folder + layer.file, Value::ordered_dict(std::move(dict), Value())));
  }
  for (const ModuleEntry& entry : state.module)
    if (!used.contains(entry.name))
      refuse_other_state(fmt::format("no layer has \"{}\"", printable(entry.name)));
  return files;
}

}  // namespace tessera::deepspeed
