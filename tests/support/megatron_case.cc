#include "tests/support/megatron_case.h"

#include <fmt/format.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/dtype.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <set>

namespace tessera::testing {
namespace {

constexpr std::int64_t kHidden = 4;  // times ToyOptions::scale

std::vector<float> numbers(const std::string& salt, std::int64_t count) {
  std::vector<float> out;
  float start = 0;
  for (const char c : salt) start = std::fmod(start * 3 + static_cast<float>(c), 251.0f);
  for (std::int64_t i = 0; i < count; ++i) out.push_back(start + static_cast<float>(i) * 0.5f);
  return out;
}

/// The part of `tensor`'s `values` that tensor-parallel rank `t` of `n` holds, element by element.
std::pair<Shape, std::vector<float>> part_of(const ToyTensor& tensor,
                                             const std::vector<float>& values, std::int64_t t,
                                             std::int64_t n) {
  const std::int64_t columns = tensor.columns ? tensor.columns : 1;
  std::vector<float> out;
  std::int64_t rows = 0;
  for (std::int64_t r = 0; r < tensor.rows; ++r) {
    const std::int64_t half = tensor.rows / 2;
    const bool mine = tensor.cut == ToyCut::kRows    ? r / (tensor.rows / n) == t
                      : tensor.cut == ToyCut::kGated ? (r % half) / (half / n) == t
                                                     : true;
    if (!mine) continue;
    ++rows;
    for (std::int64_t c = 0; c < columns; ++c)
      if (tensor.cut != ToyCut::kColumns || c / (columns / n) == t)
        out.push_back(values[static_cast<std::size_t>(r * columns + c)]);
  }
  const std::int64_t width = tensor.cut == ToyCut::kColumns ? columns / n : columns;
  return {tensor.columns ? Shape{rows, width} : Shape{rows}, out};
}

std::string content_line(DType dtype, const Shape& shape, const std::vector<float>& values) {
  Bytes bytes;
  for (const float value : values) {
    std::byte raw[4];
    std::memcpy(raw, &value, 4);
    bytes.insert(bytes.end(), dtype == DType::kFloat32 ? raw : raw + 2, raw + 4);
  }
  return fmt::format("{} {} {}", torch_name(dtype), shape.to_string(), hex(sha256(bytes)));
}

bool decays(const ToyTensor& tensor) { return tensor.columns > 0; }

std::vector<float> leaf_values(const ToyTensor& tensor, const std::string& leaf) {
  return numbers(leaf + tensor.name, static_cast<std::int64_t>(tensor.values.size()));
}

/// Number of the layer in a name, -1: none.
std::int64_t layer_of(const std::string& name) {
  const std::string word = "decoder.layers.";
  return name.starts_with(word) ? std::stoll(name.substr(word.size())) : -1;
}

bool of_expert(const std::string& name) { return name.find(".experts.") != std::string::npos; }

/// An expert's name with its number in the model replaced: "...local_experts.3.x", "...weight3".
std::optional<std::pair<std::string, std::int64_t>> numbered_expert(const std::string& name,
                                                                    std::int64_t first) {
  if (!of_expert(name)) return std::nullopt;
  std::size_t at = name.find("local_experts.");
  at = at != std::string::npos ? at + 14 : name.rfind("weight") + 6;
  std::size_t used = 0;
  const std::int64_t number = std::stoll(name.substr(at), &used);
  return std::pair(
      fmt::format("{}{}{}", name.substr(0, at), number - first, name.substr(at + used)), number);
}

/// A tensor of a rank's model dict.
struct Held {
  ToyTensor tensor;
  std::int64_t chunk = 0;
};

/// One rank's files.
class ToyRank {
 public:
  ToyRank(const ToyOptions& options, std::int64_t t, std::int64_t p, std::int64_t e)
      : options_(options), t_(t), p_(p), e_(e) {}

  Bytes model_file() {
    std::vector<std::pair<std::string, Value>> root;
    if (options_.with_args) root.emplace_back("args", arguments());
    root.emplace_back("checkpoint_version", Value::real(3.0));
    root.emplace_back("iteration", number(100));
    for (std::int64_t v = 0; v < options_.virtual_stages; ++v)
      root.emplace_back(options_.virtual_stages == 1 ? "model" : fmt::format("model{}", v),
                        model(v));
    if (options_.optimizer != ToyOptions::Optimizer::kNone)
      root.emplace_back("optimizer", optimizer());
    root.emplace_back("opt_param_scheduler", dict({{"num_steps", number(100)}}));
    root.emplace_back("rng_state", Value::list({dict({{"seed", number(5 + p_)}})}));
    return archive_.render(dict(std::move(root)), "model_optim_rng");
  }

  Bytes buckets_file() {
    RankArchive archive;
    ValueList all;
    for (const bool experts : {false, true}) {
      if (experts && !chained()) continue;
      ValueDict root = {{text("buckets_coalesced"), Value::boolean(true)}};
      for (std::int64_t v = 0; v < options_.virtual_stages; ++v) {
        std::vector<ToyTensor> tensors;
        for (const Held& held : held_)
          if (held.chunk == v && (!chained() || of_expert(held.tensor.name) == experts))
            tensors.push_back(held.tensor);
        if (tensors.empty()) continue;
        const Value key =
            Value::list({Value::dtype(options_.half ? DType::kBFloat16 : DType::kFloat32),
                         Value::dtype(DType::kFloat32)},
                        Value::Kind::kTuple);
        root.emplace_back(number(static_cast<std::int64_t>(root.size()) - 1),
                          Value::dict({{key, buffers(archive, tensors)}}));
      }
      all.push_back(Value::dict(std::move(root)));
    }
    return archive.render(all.size() == 1 ? all[0] : Value::list(all), "distrib_optim");
  }

 private:
  bool chained() const { return options_.ep > 1 && options_.experts > 0; }

  /// Reverse order, starts at multiples of 64, gaps of zeros.
  Value buffers(RankArchive& archive, const std::vector<ToyTensor>& tensors) const {
    std::vector<std::pair<std::string, Value>> made;
    std::int64_t end = 0;
    for (const std::string key : {"param", "exp_avg", "exp_avg_sq"}) {
      std::vector<float> flat;
      std::size_t base = 0;  // of the bucket
      for (std::size_t i = tensors.size(); i-- > 0;) {
        while ((flat.size() - base) % 64 != 0) flat.push_back(0);
        const std::string leaf = key == "param" ? "fp32_param" : key;
        const auto part =
            part_of(tensors[i], leaf_values(tensors[i], leaf), t_, options_.tp).second;
        flat.insert(flat.end(), part.begin(), part.end());
        // A tied embedding that two stages share has a bucket of its own.
        if (options_.tied && options_.pp > 1 && tensors[i].name.starts_with("embedding."))
          base = flat.size();
      }
      end = static_cast<std::int64_t>(flat.size());
      made.emplace_back(key, archive.tensor(Shape{end}, flat));
    }
    made.emplace_back("numel_unpadded", number(end));
    return dict(std::move(made));
  }

  Value arguments() const {
    std::vector<std::pair<std::string, Value>> items = {
        {"tensor_model_parallel_size", number(options_.tp)},
        {"pipeline_model_parallel_size", number(options_.pp)},
        {"expert_model_parallel_size", number(options_.ep)},
        {"swiglu", Value::boolean(options_.gated)},
        {"num_attention_heads", number(4 * options_.scale)},
        {"untie_embeddings_and_output_weights", Value::boolean(!options_.tied)},
        {"rank", number(p_ * options_.tp + t_)}};
    for (const auto& item : options_.more_args) items.push_back(item);
    return argument_namespace(std::move(items));
  }

  /// Layers of chunk v of this stage: [first, first + count).
  std::pair<std::int64_t, std::int64_t> layers(std::int64_t v) const {
    const std::int64_t count = options_.layers / (options_.pp * options_.virtual_stages);
    return {(v * options_.pp + p_) * count, count};
  }

  Value model(std::int64_t v) {
    std::vector<std::pair<std::string, Value>> items;
    const auto [first, count] = layers(v);
    const bool is_first = p_ == 0 && v == 0;
    const bool is_last = p_ == options_.pp - 1 && v == options_.virtual_stages - 1;
    const ToyTensor* embedding = nullptr;
    const std::vector<ToyTensor> whole = toy_model(options_);
    for (const ToyTensor& tensor : whole) {
      const std::int64_t layer = layer_of(tensor.name);
      std::string name = tensor.name;
      if (name.starts_with("embedding.")) embedding = &tensor;
      if (layer >= 0) {
        if (layer < first || layer >= first + count) continue;
        const std::string rest = name.substr(name.find('.', std::string("decoder.layers.").size()));
        name = fmt::format("decoder.layers.{}{}", layer - first, rest);
      } else if (name.starts_with("embedding.") ? !is_first : !is_last) {
        continue;
      }
      const std::int64_t each = options_.experts / options_.ep;
      if (const auto expert = numbered_expert(name, e_ * each)) {
        if (expert->second / each != e_) continue;
        name = expert->first;
      }
      items.emplace_back(name, stored(tensor, v));
    }
    if (options_.tied && options_.pp > 1 && is_last)
      items.emplace_back("output_layer.weight", stored(*embedding, v));
    return dict(std::move(items));
  }

  Value stored(const ToyTensor& tensor, std::int64_t chunk) {
    held_.push_back({tensor, chunk});
    const auto [shape, values] = part_of(tensor, tensor.values, t_, options_.tp);
    return options_.half ? archive_.half(shape, values) : archive_.tensor(shape, values);
  }

  Value optimizer() {
    if (!chained()) return optimizer_of(std::nullopt);
    return Value::list({optimizer_of(false), optimizer_of(true)});
  }

  /// `experts`: of the dense parameters, or of the experts; nullopt: one for all.
  Value optimizer_of(std::optional<bool> experts) {
    using Kind = ToyOptions::Optimizer;
    ValueDict state;
    ValueList groups, masters;
    std::int64_t id = 0;
    for (const bool decay : {true, false}) {
      if (experts == true && !decay) continue;  // experts have no biases here
      ValueList ids, copies;
      for (const Held& held : held_) {
        const ToyTensor& tensor = held.tensor;
        if (decays(tensor) != decay || (experts && of_expert(tensor.name) != *experts)) continue;
        ids.push_back(number(id));
        if (options_.optimizer == Kind::kAdam) {
          state.emplace_back(number(id), dict({{"step", number(7)},
                                               {"exp_avg", leaf(tensor, "exp_avg")},
                                               {"exp_avg_sq", leaf(tensor, "exp_avg_sq")}}));
        }
        copies.push_back(options_.half ? leaf(tensor, "fp32_param") : Value());
        ++id;
      }
      ValueDict group = {{text("lr"), Value::real(experts == true ? options_.expert_lr : 0.001)},
                         {text("weight_decay"), Value::real(decay ? 0.1 : 0.0)},
                         {text("is_expert_parallel"), Value::boolean(experts == true)}};
      if (options_.optimizer == Kind::kDistributed) {
        group.emplace_back(text("step"), number(7));
      } else {
        group.emplace_back(text("params"), Value::list(std::move(ids)));
      }
      groups.push_back(Value::dict(std::move(group)));
      masters.push_back(Value::list(std::move(copies)));
    }
    std::vector<std::pair<std::string, Value>> inner;
    if (options_.optimizer != Kind::kDistributed)
      inner.emplace_back("state", Value::dict(std::move(state)));
    inner.emplace_back("param_groups", Value::list(std::move(groups)));
    if (!options_.half && options_.optimizer != Kind::kDistributed) return dict(std::move(inner));
    std::vector<std::pair<std::string, Value>> outer = {
        {"optimizer", dict(std::move(inner))},
        {"grad_scaler", dict({{"scale", Value::real(1024)}})}};
    if (options_.optimizer != Kind::kDistributed)
      outer.emplace_back("fp32_from_fp16_params", Value::list(std::move(masters)));
    return dict(std::move(outer));
  }

  Value leaf(const ToyTensor& tensor, const std::string& name) {
    const auto [shape, values] = part_of(tensor, leaf_values(tensor, name), t_, options_.tp);
    return archive_.tensor(shape, values);
  }

  const ToyOptions& options_;
  std::int64_t t_, p_, e_;
  RankArchive archive_;
  std::vector<Held> held_;  // of the model dicts, in order
};

}  // namespace

std::vector<ToyTensor> toy_model(const ToyOptions& options) {
  std::vector<ToyTensor> model;
  const std::int64_t hidden = kHidden * options.scale;
  const std::int64_t wide = 16 * options.scale, narrow = 8 * options.scale;
  const auto add = [&](std::string name, std::int64_t rows, std::int64_t columns, ToyCut cut) {
    ToyTensor tensor{std::move(name), rows, columns, cut, {}};
    tensor.values = numbers(tensor.name, rows * (columns ? columns : 1));
    model.push_back(std::move(tensor));
  };
  const ToyCut gated = options.gated ? ToyCut::kGated : ToyCut::kRows;
  add("embedding.word_embeddings.weight", options.vocabulary, hidden, ToyCut::kRows);
  for (std::int64_t n = 0; n < options.layers; ++n) {
    const std::string layer = fmt::format("decoder.layers.{}.", n);
    add(layer + "self_attention.linear_proj.weight", hidden, hidden, ToyCut::kColumns);
    add(layer + "self_attention.linear_proj.bias", hidden, 0, ToyCut::kNone);
    add(layer + "self_attention.linear_qkv.layer_norm_weight", hidden, 0, ToyCut::kNone);
    add(layer + "self_attention.linear_qkv.weight", 3 * hidden, hidden, ToyCut::kRows);
    add(layer + "self_attention.linear_qkv.bias", 3 * hidden, 0, ToyCut::kRows);
    if (options.experts == 0) {
      add(layer + "mlp.linear_fc1.weight", wide, hidden, gated);
      add(layer + "mlp.linear_fc1.bias", wide, 0, gated);
      add(layer + "mlp.linear_fc2.weight", hidden, narrow, ToyCut::kColumns);
      continue;
    }
    add(layer + "mlp.router.weight", options.experts, hidden, ToyCut::kNone);
    // A module each, or, in odd layers, grouped matrices.
    for (std::int64_t e = 0; e < options.experts && n % 2 == 0; ++e) {
      const std::string expert = fmt::format("{}mlp.experts.local_experts.{}.", layer, e);
      add(expert + "linear_fc1.weight", wide, hidden, gated);
      add(expert + "linear_fc2.weight", hidden, narrow, ToyCut::kColumns);
    }
    for (std::int64_t e = 0; e < options.experts && n % 2 == 1; ++e)
      add(fmt::format("{}mlp.experts.linear_fc1.weight{}", layer, e), wide, hidden, gated);
    for (std::int64_t e = 0; e < options.experts && n % 2 == 1; ++e)
      add(fmt::format("{}mlp.experts.linear_fc2.weight{}", layer, e), hidden, narrow,
          ToyCut::kColumns);
  }
  add("decoder.final_layernorm.weight", hidden, 0, ToyCut::kNone);
  if (!options.tied) add("output_layer.weight", options.vocabulary, hidden, ToyCut::kRows);
  return model;
}

std::map<std::string, std::string> toy_content(const ToyOptions& options) {
  using Kind = ToyOptions::Optimizer;
  std::map<std::string, std::string> out;
  const std::string state = "optimizer.state.";
  std::set<std::string> leaves;
  if (options.optimizer == Kind::kAdam || options.optimizer == Kind::kDistributed)
    leaves = {"exp_avg", "exp_avg_sq"};
  if ((options.half && options.optimizer != Kind::kNone) || options.optimizer == Kind::kDistributed)
    leaves.insert("fp32_param");
  for (const ToyTensor& tensor : toy_model(options)) {
    out["model." + tensor.name] = content_line(options.half ? DType::kBFloat16 : DType::kFloat32,
                                               tensor.shape(), tensor.values);
    for (const std::string& leaf : leaves)
      out[state + tensor.name + "." + leaf] =
          content_line(DType::kFloat32, tensor.shape(), leaf_values(tensor, leaf));
  }
  return out;
}

std::map<std::string, Bytes> toy_files(const ToyOptions& options) {
  std::map<std::string, Bytes> files;
  for (std::int64_t p = 0; p < options.pp; ++p) {
    for (std::int64_t e = 0; e < options.ep; ++e) {
      for (std::int64_t t = 0; t < options.tp; ++t) {
        std::string folder = fmt::format("mp_rank_{:02}", t);
        if (options.pp > 1) folder += fmt::format("_{:03}", p);
        if (options.ep > 1) folder += fmt::format("_{:03}", e);
        ToyRank rank(options, t, p, e);
        files[folder + "/model_optim_rng.pt"] = rank.model_file();
        if (options.optimizer == ToyOptions::Optimizer::kDistributed)
          files[folder + "/distrib_optim.pt"] = rank.buckets_file();
      }
    }
  }
  return files;
}

void write_toy(MemoryFileSystem& fs, const std::string& folder, const ToyOptions& options) {
  for (const auto& [path, bytes] : toy_files(options)) fs.write_file(folder + "/" + path, bytes);
}

}  // namespace tessera::testing
