#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/hdf5.h>

#include <algorithm>
#include <array>

#include "lib/format/hdf5/files.h"
#include "lib/format/hdf5/keras_files.h"
#include "lib/format/hdf5/output_plan.h"
#include "lib/format/hdf5/reader.h"
#include "lib/format/own_results.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

std::string_view kind_of(const std::string& name) {
  return h5::has_index_suffix(name)   ? "index of Keras weights"
         : h5::has_keras_suffix(name) ? "Keras archive"
                                      : "HDF5 file";
}

/// What cannot be read is claimed by its name alone, so that the reader says what is wrong.
ProbeResult probe_index(const Directory& directory, const std::string& name) {
  try {
    h5::read_keras_index(directory, name);
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt) throw;
    return {Answer::kMaybe, "is named like an index of Keras weights, but is none"};
  }
  return {Answer::kYes, "lists the shards of Keras weights"};
}

/// transformers' copy of weights for TensorFlow, beside those for PyTorch.
bool is_copy_for_tensorflow(const Directory& directory, std::string_view file) {
  constexpr std::array kWeights = {"model.safetensors", "model.safetensors.index.json",
                                   "pytorch_model.bin", "pytorch_model.bin.index.json"};
  return file == "tf_model.h5" && std::ranges::any_of(kWeights, [&](const char* weights) {
           return directory.stat(weights).has_value();
         });
}

ProbeResult probe_folder(const Directory& directory) {
  const auto main = h5::main_file(directory);
  if (!main || is_copy_for_tensorflow(directory, *main)) return {};
  const OwnResults own = find_own_results(directory);
  if (own.files > 0 && own.count() > 1) return {};
  const bool damaged =
      h5::has_index_suffix(*main) && probe_index(directory, *main).answer == Answer::kMaybe;
  return {damaged ? Answer::kMaybe : Answer::kYes,
          fmt::format("has the {} {}", kind_of(*main), *main)};
}

ProbeResult probe_file(const Place& place) {
  if (h5::has_index_suffix(place.file)) return probe_index(*place.directory, place.file);
  const auto file = place.directory->open(place.file);
  if (h5::looks_like_keras(*file)) return {Answer::kYes, "is a zip that holds model.weights.h5"};
  if (h5::is_zip_named_keras(*file, place.file))
    return {Answer::kYes, "is named and begins like a Keras archive"};
  if (h5::looks_like_hdf5(*file)) return {Answer::kYes, "has HDF5's signature"};
  if (h5::has_hdf5_suffix(place.file))
    return {Answer::kMaybe, "is named like an HDF5 file, but has no signature of one"};
  return {};
}

class Hdf5Driver : public FormatDriver {
 public:
  std::string_view id() const override { return "hdf5"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kSuffixes[] = {".h5", ".hdf5", ".keras"};
    static constexpr std::string_view kMoreResults[] = {".hdf5"};
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag};
    return {.keeps_containers = true,
            .is_weights = true,
            .suffixes = kSuffixes,
            .result_suffix = ".h5",
            .more_result_suffixes = kMoreResults,
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    return place.file.empty() ? probe_folder(*place.directory) : probe_file(place);
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return h5::read_manifest(place, options);
  }
  /// Every place is known; what cannot be read says why.
  void locate(const Place&, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions&) const override {
    h5::refuse_pending(manifest, tensors);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return h5::plan_output(source, request);
  }
};

}  // namespace

const FormatDriver& hdf5_driver() {
  static const Hdf5Driver driver;
  return driver;
}

}  // namespace tessera
