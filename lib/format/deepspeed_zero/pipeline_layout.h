#pragma once
// How a pipeline's engine shares out the model: which stage trains what, in the order of its flat
// buffers, and which file of a layer holds what. The reader leaves it in Manifest::provenance for
// the writer, as JSON.
#include <tessera/state/manifest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::deepspeed {

struct PipelineLayout {
  using Names = std::vector<std::string>;
  struct Layer {
    std::string file;
    std::vector<std::pair<std::string, std::string>> entries;  // key, name in the model
  };
  std::vector<std::vector<Names>> stages;  // per stage and group: names of parameters
  std::vector<Layer> layers;               // ascending, those without anything among them
};

void keep_layout(Manifest& manifest, const PipelineLayout& layout);
std::optional<PipelineLayout> kept_layout(const Manifest& manifest);

}  // namespace tessera::deepspeed
