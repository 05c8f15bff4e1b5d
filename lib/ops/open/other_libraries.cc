#include "lib/ops/open/other_libraries.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

struct Known {
  std::string_view name;  // of a file in a folder, or the end of a file's name
  std::string_view what;
};

constexpr std::array kFolders = {
    Known{"_CHECKPOINT_METADATA", "an Orbax checkpoint (JAX)"},
    Known{"manifest.ocdbt", "an Orbax checkpoint (JAX)"},
    Known{"saved_model.pb", "a SavedModel of TensorFlow"},
    Known{"checkpoint", "a checkpoint of TensorFlow"},
    Known{"flax_model.msgpack", "a checkpoint of Flax (msgpack)"},
    Known{"model.onnx", "an ONNX model"},
    Known{"openvino_model.xml", "a model of OpenVINO"},
    Known{"model_state.pdparams", "a checkpoint of PaddlePaddle"},
};

constexpr std::array kFiles = {
    Known{".msgpack", "a checkpoint of Flax (msgpack)"},
    Known{".onnx", "an ONNX model"},
    Known{".tflite", "a model of TensorFlow Lite"},
    Known{".pb", "a graph of TensorFlow"},
    Known{".pdparams", "weights of PaddlePaddle"},
    Known{".pdopt", "an optimizer's state of PaddlePaddle"},
    Known{".mlmodel", "a model of Core ML"},
    Known{".ot", "weights for tch (Rust)"},
};

/// "model.ckpt-100.index", "model.ckpt-100.data-00000-of-00001"
bool is_of_tensorflow(std::string_view name) {
  if (name.ends_with(".index")) return true;
  const std::size_t data = name.rfind(".data-");
  return data != name.npos && name.find("-of-", data) != name.npos;
}

}  // namespace

std::string_view file_of_other_library(std::string_view name) {
  if (is_of_tensorflow(name)) return "a part of a checkpoint of TensorFlow";
  const auto found =
      std::ranges::find_if(kFiles, [&](const Known& known) { return name.ends_with(known.name); });
  return found == kFiles.end() ? std::string_view() : found->what;
}

std::string_view folder_of_other_library(std::span<const FileInfo> entries) {
  const auto is_there = [&](const Known& known) {
    return std::ranges::find(entries, known.name, &FileInfo::name) != entries.end();
  };
  const auto found = std::ranges::find_if(kFolders, is_there);
  return found == kFolders.end() ? std::string_view() : found->what;
}

}  // namespace tessera
