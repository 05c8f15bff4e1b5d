#include "lib/ops/edit/quantize.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest_edit.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lib/base/append.h"
#include "lib/ops/edit/quantize_choice.h"
#include "lib/ops/edit/quantize_config.h"
#include "lib/state/block_quantizer.h"
#include "lib/state/edit/forget_ids.h"

namespace tessera {
namespace {

/// Layers that vLLM joins into one, so that they have one second scale.
constexpr std::array kJoined = {std::pair(std::string_view("q_proj"), 0),
                                std::pair(std::string_view("k_proj"), 0),
                                std::pair(std::string_view("v_proj"), 0),
                                std::pair(std::string_view("gate_proj"), 1),
                                std::pair(std::string_view("up_proj"), 1),
                                std::pair(std::string_view("q_a_proj"), 2),
                                std::pair(std::string_view("kv_a_proj_with_mqa"), 2),
                                std::pair(std::string_view("w1"), 3),
                                std::pair(std::string_view("w3"), 3)};

/// The same text for weights that have one second scale.
std::string joined_key(const std::string& name) {
  const std::size_t leaf = name.rfind('.');
  if (leaf == name.npos) return name;
  const std::size_t layer = name.rfind('.', leaf - 1);
  const std::size_t begin = layer == name.npos ? 0 : layer + 1;
  const std::string_view module = std::string_view(name).substr(begin, leaf - begin);
  const auto found = std::ranges::find(kJoined, module, &std::pair<std::string_view, int>::first);
  if (found == kJoined.end()) return name;
  return fmt::format("{}#{}", name.substr(0, begin), found->second);
}

std::string scheme_text(BlockScheme scheme) {
  switch (scheme) {
    case BlockScheme::kFp8:
      return "float8_e4m3fn, blocks of 128x128";
    case BlockScheme::kMxfp4:
      return "MXFP4";
    case BlockScheme::kNvfp4:
      return "NVFP4";
  }
  return "";
}

class Quantizer {
 public:
  Quantizer(OpenedCheckpoint& checkpoint, const Transformations& asked,
            const TransferOptions& transfer, TransformOutcome& out)
      : checkpoint_(checkpoint),
        manifest_(checkpoint.manifest),
        asked_(asked),
        scheme_(*asked.quantize),
        transfer_(transfer),
        out_(out) {
    transfer_.progress = nullptr;
  }

  void run() {
    choose();
    settle_optimizers();
    if (scheme_ == BlockScheme::kNvfp4) find_seconds();
    replace();
    out_.quantization = quantization_config(scheme_, choice_.weights[0].stacked, choice_.kept);
    append(out_.notes, choice_.notes);
    out_.applied.push_back(
        {"quantize", scheme_text(scheme_), choice_.weights.size(), std::move(changes_)});
  }

 private:
  const StoredTensor& tensor_of(const QuantizedChoice& weight) const {
    return manifest_.tensors[index_of(weight)];
  }
  std::uint32_t index_of(const QuantizedChoice& weight) const {
    return manifest_.state.entries[weight.entry].value.tensor_index();
  }

  void choose() {
    roles_ = find_roles(manifest_.state);
    choice_ = choose_quantized(manifest_, roles_, asked_, out_.aliases);
  }

  /// State of an optimizer has an element for each of the weight's, and codes are none.
  void settle_optimizers() {
    if (roles_.optimizers.empty()) return;
    if (asked_.optim == OptimPolicy::kKeep)
      fail(
          Code::kUnsupported,
          fmt::format("--quantize: the state of optimizer \"{}\" cannot follow weights that become "
                      "codes",
                      printable(roles_.optimizers[0].name)),
          "--only model leaves the optimizer out, --optim drop the state of such weights");
    std::set<std::string> gone;
    for (const QuantizedChoice& weight : choice_.weights) gone.insert(weight.fqn);
    std::vector<bool> keep(manifest_.state.entries.size(), true);
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (roles_.entries[i].root >= 0 && gone.contains(roles_.entries[i].fqn)) keep[i] = false;
    forget_ids(manifest_, roles_, gone, keep);
    const std::size_t known = manifest_.left_out.size();
    keep_entries(manifest_, keep, {gone.begin(), gone.end()});
    for (std::size_t i = known; i < manifest_.left_out.size(); ++i)
      manifest_.left_out[i].reason = "state of a weight that is quantized (--optim drop)";
    choose();
  }

  void find_seconds() {
    std::vector<std::uint32_t> indices;
    for (const QuantizedChoice& weight : choice_.weights) indices.push_back(index_of(weight));
    std::ranges::sort(indices);
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    std::vector<float> largest(manifest_.tensors.size());
    if (!asked_.plan_only)
      TensorReader(manifest_, *checkpoint_.directory, transfer_)
          .stream(indices, [&](const TensorReader::Block& block) {
            const StoredTensor& tensor = manifest_.tensors[block.tensor];
            float& most = largest[block.tensor];
            in_tensor(tensor.name, [&] {
              most = std::max(most, largest_magnitude(tensor.spec.dtype, block.bytes));
            });
          });
    std::map<std::string, float> joined;
    for (const QuantizedChoice& weight : choice_.weights) {
      float& most = joined[joined_key(manifest_.state.entries[weight.entry].name)];
      most = std::max(most, largest[index_of(weight)]);
    }
    for (const QuantizedChoice& weight : choice_.weights)
      seconds_.push_back(
          second_scale(joined.at(joined_key(manifest_.state.entries[weight.entry].name))));
  }

  void replace() {
    std::unordered_map<std::uint32_t, std::size_t> uses;
    for (const StateEntry& entry : manifest_.state.entries) {
      if (entry.value.is_tensor()) ++uses[entry.value.tensor_index()];
      names_.insert(entry.name);
    }
    std::vector<StateEntry> entries;
    std::size_t next = 0;
    for (std::size_t i = 0; i < manifest_.state.entries.size(); ++i) {
      StateEntry& entry = manifest_.state.entries[i];
      if (next == choice_.weights.size() || choice_.weights[next].entry != i) {
        entries.push_back(std::move(entry));
        continue;
      }
      const std::uint32_t index = entry.value.tensor_index();
      quantize(next, entry, entries);
      manifest_.tensors[index].embedded = --uses[index] == 0;
      ++next;
    }
    manifest_.state.entries = std::move(entries);
  }

  void quantize(std::size_t number, const StateEntry& entry, std::vector<StateEntry>& entries) {
    const QuantizedChoice& choice = choice_.weights[number];
    const std::uint32_t part =
        choice.turned ? turned(entry.value.tensor_index()) : entry.value.tensor_index();
    const TensorSpec spec = manifest_.tensors[part].spec;
    BlockWeight weight;
    weight.scheme = scheme_;
    weight.dtype = spec.dtype;
    weight.columns = spec.shape[spec.shape.rank() - 1];
    weight.rows = spec.shape.numel() / weight.columns;
    if (scheme_ == BlockScheme::kNvfp4) weight.second = seconds_[number];
    std::vector<std::int64_t> codes(spec.shape.extents().begin(), spec.shape.extents().end());
    std::vector<std::int64_t> scales = codes;
    scales.back() = ceil_div(codes.back(), block_columns(scheme_));
    std::string_view codes_name = "_packed", scales_name = "_scale";
    DType codes_type = DType::kUInt8, scales_type = DType::kUInt8;
    if (scheme_ == BlockScheme::kFp8) {
      codes_name = "", scales_name = "_scale_inv";
      codes_type = DType::kFloat8E4M3Fn, scales_type = DType::kFloat32;
      scales[0] = ceil_div(codes[0], block_columns(scheme_));
    } else if (choice.stacked) {
      codes_name = "_blocks", scales_name = "_scales";
      codes.back() = block_columns(scheme_) / 2;
      codes.insert(codes.end() - 1, scales.back());
    } else {
      codes.back() /= 2;
    }
    if (scheme_ == BlockScheme::kNvfp4) scales_type = DType::kFloat8E4M3Fn;
    const auto bytes_before = static_cast<std::uint64_t>(spec.size_bytes());
    count_bytes(spec.dtype, 0, bytes_before);
    entries.push_back(
        made(entry, codes_name, {codes_type, Shape(codes)}, {block_codes(weight), {part}}));
    entries.push_back(
        made(entry, scales_name, {scales_type, Shape(scales)}, {block_scales(weight), {part}}));
    if (scheme_ == BlockScheme::kNvfp4) entries.push_back(second(entry, weight.second));
    changes_.push_back(
        fmt::format("{}: {} -> {}", entry.name, torch_name(spec.dtype), scheme_text(scheme_)));
  }

  /// [experts, inputs, outputs] as [experts, outputs, inputs].
  std::uint32_t turned(std::uint32_t index) {
    const Shape shape = manifest_.tensors[index].spec.shape;
    TensorPiece piece = whole_piece(manifest_, index);
    piece.dims = {0, 2, 1};
    piece.origin = {0, 0, 0};
    const std::string name = manifest_.tensors[index].name;
    const std::uint32_t built =
        build_tensor(manifest_, name, Shape({shape[0], shape[2], shape[1]}), {&piece, 1});
    manifest_.tensors[built].embedded = true;
    return built;
  }

  StateEntry made(const StateEntry& weight, std::string_view ending, const TensorSpec& spec,
                  ComputedElements elements) {
    Source source;
    source.kind = Source::Kind::kComputed;
    source.side = static_cast<std::uint32_t>(manifest_.computed.size());
    manifest_.computed.push_back(std::move(elements));
    return add(weight, ending, spec, source);
  }

  StateEntry second(const StateEntry& weight, float value) {
    Source source;
    source.kind = Source::Kind::kInline;
    source.side = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
    const auto bytes = std::as_bytes(std::span(&value, 1));
    manifest_.inline_bytes.emplace_back(bytes.begin(), bytes.end());
    return add(weight, "_global_scale", {DType::kFloat32, Shape({1})}, source);
  }

  /// An entry beside the weight's, and its tensor.
  StateEntry add(const StateEntry& weight, std::string_view ending, const TensorSpec& spec,
                 const Source& source) {
    StateEntry entry = weight;
    entry.name = weight.name + std::string(ending);
    if (!ending.empty() && !names_.insert(entry.name).second)
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is there already, and would be a part of \"{}\"",
                       printable(entry.name), printable(weight.name)),
           "leave it out with --exclude");
    if (!entry.path.empty())
      entry.path.back() = key_item(entry.path.back().text() + std::string(ending));
    StoredTensor tensor;
    tensor.name = entry.name;
    tensor.spec = spec;
    tensor.kind = TensorKind::kParam;
    tensor.first_chunk = manifest_.chunks.size();
    tensor.chunk_count = 1;
    manifest_.chunks.add(Chunk::whole_of(Box::whole(spec.shape)), source);
    count_bytes(spec.dtype, 1, static_cast<std::uint64_t>(spec.size_bytes()));
    manifest_.tensors.push_back(std::move(tensor));
    entry.value = Value::tensor(static_cast<std::uint32_t>(manifest_.tensors.size() - 1));
    return entry;
  }

  /// Totals that a cast has made: a tensor more after it, or (`more` = 0) one less.
  void count_bytes(DType dtype, int more, std::uint64_t bytes) {
    if (out_.dtypes.empty()) return;
    auto total = std::ranges::find(out_.dtypes, dtype, &DTypeTotal::dtype);
    if (total == out_.dtypes.end()) {
      out_.dtypes.push_back({dtype, 0, 0, 0, 0});
      total = out_.dtypes.end() - 1;
    }
    total->tensors_after += more != 0 ? 1 : -1;
    total->bytes_after += more != 0 ? bytes : -bytes;
  }

  OpenedCheckpoint& checkpoint_;
  Manifest& manifest_;
  const Transformations& asked_;
  BlockScheme scheme_;
  TransferOptions transfer_;
  TransformOutcome& out_;
  Roles roles_;
  QuantizeChoice choice_;
  std::vector<float> seconds_;  // by weight
  std::unordered_set<std::string> names_;
  std::vector<std::string> changes_;
};

}  // namespace

void apply_quantize(OpenedCheckpoint& checkpoint, const Transformations& asked,
                    const TransferOptions& transfer, TransformOutcome& out) {
  Quantizer(checkpoint, asked, transfer, out).run();
}

}  // namespace tessera
