#include "lib/ops/edit/quantize_config.h"

#include <tessera/encoding/json.h>

#include <algorithm>
#include <string_view>

namespace tessera {
namespace {

Value text(std::string_view value) { return Value::string(std::string(value)); }

/// Names of modules. The output layer is no tensor of its own where it is tied, and a module still.
Value modules_of(const std::vector<std::string>& weights) {
  constexpr std::string_view kSuffix = ".weight", kOutput = "lm_head";
  ValueList modules;
  bool has_output = false;
  for (const std::string& weight : weights) {
    std::string_view module = weight;
    if (module.ends_with(kSuffix)) module.remove_suffix(kSuffix.size());
    has_output = has_output || module == kOutput;
    modules.push_back(text(module));
  }
  if (!has_output) modules.push_back(text(kOutput));
  return Value::list(std::move(modules));
}

Value compressed_tensors(std::string_view format, std::string_view strategy, std::int64_t group,
                         Value ignored) {
  const Value weights = Value::dict({{text("num_bits"), Value::integer(4)},
                                     {text("type"), text("float")},
                                     {text("strategy"), text(strategy)},
                                     {text("group_size"), Value::integer(group)},
                                     {text("symmetric"), Value::boolean(true)},
                                     {text("dynamic"), Value::boolean(false)}});
  const Value layers = Value::dict({{text("targets"), Value::list({text("Linear")})},
                                    {text("weights"), weights},
                                    {text("input_activations"), Value()},
                                    {text("output_activations"), Value()},
                                    {text("format"), text(format)}});
  return Value::dict({{text("quant_method"), text("compressed-tensors")},
                      {text("format"), text(format)},
                      {text("quantization_status"), text("compressed")},
                      {text("config_groups"), Value::dict({{text("group_0"), layers}})},
                      {text("ignore"), std::move(ignored)}});
}

}  // namespace

std::string quantization_config(BlockScheme scheme, bool stacked,
                                const std::vector<std::string>& kept) {
  Value modules = modules_of(kept);
  switch (scheme) {
    case BlockScheme::kFp8:
      return dump_json(Value::dict(
          {{text("quant_method"), text("fp8")},
           {text("fmt"), text("e4m3")},
           {text("activation_scheme"), text("dynamic")},
           {text("weight_block_size"), Value::list({Value::integer(128), Value::integer(128)})},
           {text("modules_to_not_convert"), std::move(modules)}}));
    case BlockScheme::kMxfp4:
      if (!stacked)
        return dump_json(
            compressed_tensors("mxfp4-pack-quantized", "group", 32, std::move(modules)));
      return dump_json(Value::dict({{text("quant_method"), text("mxfp4")},
                                    {text("modules_to_not_convert"), std::move(modules)}}));
    case BlockScheme::kNvfp4:
      return dump_json(
          compressed_tensors("nvfp4-pack-quantized", "tensor_group", 16, std::move(modules)));
  }
  return "";
}

}  // namespace tessera
