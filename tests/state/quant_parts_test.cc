// Which tensors are parts of a quantized weight: by names and types, as the frameworks write them.
#include "lib/state/quant_parts.h"

#include <catch2/catch.hpp>
#include <set>

namespace quant_parts_test {

using namespace tessera;

namespace {

struct Named {
  std::string name;
  DType dtype;
  Shape shape;
};

/// The names that are parts.
std::set<std::string> parts_of(const std::vector<Named>& tensors) {
  Manifest manifest;
  for (const Named& tensor : tensors) {
    StoredTensor& stored = manifest.tensors.emplace_back();
    stored.name = tensor.name;
    stored.spec = {tensor.dtype, tensor.shape};
  }
  const std::vector<QuantPart> parts = quant_parts(manifest);
  std::set<std::string> names;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i] != QuantPart::kNone) names.insert(tensors[i].name);
  return names;
}

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kU8 = DType::kUInt8;
constexpr DType kFp8 = DType::kFloat8E4M3Fn;

/// All of `quantized` are parts, and a norm and a bias beside them are none.
void check(const std::string& what, std::vector<Named> quantized) {
  CAPTURE(what);
  std::set<std::string> wanted;
  for (const Named& tensor : quantized) wanted.insert(tensor.name);
  quantized.push_back({"norm.weight", kBf16, {8}});
  quantized.push_back({"norm.scale", kBf16, {8}});
  quantized.push_back({"q.bias", kBf16, {8}});
  quantized.push_back({"experts.gate_up_proj_bias", kBf16, {2, 8}});
  CHECK(parts_of(quantized) == wanted);
}

}  // namespace

TEST_CASE("parts of quantized weights, as each method names them") {
  check("DeepSeek", {{"q.weight", kFp8, {8, 8}}, {"q.weight_scale_inv", kF32, {1, 1}}});
  check("experts in one tensor",
        {{"experts.gate_up_proj", kFp8, {2, 8, 8}}, {"experts.gate_up_proj_scale_inv", kF32, {2}}});
  check("fp8 per tensor", {{"q.weight", kFp8, {8, 8}},
                           {"q.weight_scale", kBf16, {}},
                           {"q.input_scale", kF32, {}},
                           {"attn.k_scale", kF32, {}}});
  check("stacked experts of modelopt and transformers",
        {{"experts.gate_up_proj", kFp8, {2, 8, 8}},
         {"experts.gate_up_proj_weight_scale", kF32, {2}},
         {"experts.gate_up_proj_weight_scale_2", kF32, {2}},
         {"experts.gate_up_proj_input_scale", kF32, {2}},
         {"experts.gate_up_proj_activation_scale", kF32, {2}}});
  check("MXFP4", {{"experts.gate_up_proj_blocks", kU8, {2, 8, 1, 16}},
                  {"experts.gate_up_proj_scales", kU8, {2, 8, 1}}});
  check("NVFP4", {{"q.weight", kU8, {8, 4}},
                  {"q.weight_scale", kFp8, {8, 1}},
                  {"q.weight_scale_2", kF32, {}},
                  {"q.input_scale", kF32, {}}});
  check("compressed-tensors", {{"q.weight_packed", DType::kInt32, {8, 1}},
                               {"q.weight_scale", kBf16, {8, 1}},
                               {"q.weight_zero_point", DType::kInt32, {1, 1}},
                               {"q.weight_shape", DType::kInt64, {2}},
                               {"q.weight_global_scale", kF32, {1}}});
  check("nf4, doubly quantized", {{"q.weight", kU8, {32, 1}},
                                  {"q.weight.absmax", kU8, {4}},
                                  {"q.weight.quant_map", kF32, {16}},
                                  {"q.weight.nested_absmax", kF32, {1}},
                                  {"q.weight.nested_quant_map", kF32, {256}},
                                  {"q.weight.quant_state.bitsandbytes__nf4", kU8, {60}}});
  check("nf4 in bfloat16 (bnb_4bit_quant_storage)", {{"q.weight", kBf16, {16, 1}},
                                                     {"q.weight.absmax", kF32, {4}},
                                                     {"q.weight.quant_map", kF32, {16}}});
  check("int8", {{"q.weight", DType::kInt8, {8, 8}}, {"q.SCB", kF32, {8}}});
  check("AWQ", {{"q.qweight", DType::kInt32, {8, 1}},
                {"q.qzeros", DType::kInt32, {1, 1}},
                {"q.scales", DType::kFloat16, {1, 8}}});
  check("GPTQ", {{"q.qweight", DType::kInt32, {1, 8}},
                 {"q.qzeros", DType::kInt32, {1, 1}},
                 {"q.scales", DType::kFloat16, {1, 8}},
                 {"q.g_idx", DType::kInt32, {8}}});
  check("AQLM", {{"q.codes", DType::kInt8, {8, 1, 1}},
                 {"q.codebooks", kBf16, {1, 256, 1, 8}},
                 {"q.scales", kBf16, {8, 1, 1, 1}}});
}

TEST_CASE("all that a module keeps beside a weight that is codes is a part") {
  check("ComfyUI",
        {{"q.weight", kFp8, {8, 8}}, {"q.scale_weight", kF32, {}}, {"q.scale_input", kF32, {}}});
  check("Ascend", {{"q.weight", DType::kInt8, {8, 8}},
                   {"q.weight_scale", kBf16, {8, 1}},
                   {"q.weight_offset", kBf16, {8, 1}},
                   {"q.deq_scale", kF32, {8}}});
  check("SmoothQuant", {{"q.weight", DType::kInt8, {8, 8}}, {"q.a", kF32, {}}});
  check("Marlin", {{"q.B", DType::kInt32, {1, 16}}, {"q.s", DType::kFloat16, {1, 8}}});
  check("EXL3", {{"q.trellis", DType::kInt16, {1, 1, 64}},
                 {"q.suh", DType::kFloat16, {8}},
                 {"q.svh", DType::kFloat16, {8}}});
  check(
      "QuIP#",
      {{"q.Qidxs", DType::kInt64, {8, 1}}, {"q.SU", DType::kFloat16, {8}}, {"q.Wscale", kF32, {}}});
  check("VPTQ", {{"q.indices", DType::kInt32, {1, 8, 1}},
                 {"q.centroids.weight", kBf16, {1, 64}},
                 {"q.weight_bias", kBf16, {8}}});
  check("FP-Quant", {{"q.qweight", kU8, {8, 4}},
                     {"q.scales", kU8, {8, 1}},
                     {"q.act_global_scale", kF32, {1}},
                     {"q.forward_hadamard_matrix", kF32, {4, 4}}});
  check("quanto, packed", {{"q.weight._data._data", kU8, {8, 4}},
                           {"q.weight._scale", kF32, {8, 1}},
                           {"q.weight._shift", kF32, {8, 1}},
                           {"q.input_scale", kF32, {}}});
  // An adapter and the weights of other modules are numbers of their own.
  CHECK(parts_of({{"q.weight", kFp8, {8, 8}},
                  {"q.lora_A", kF32, {2, 8}},
                  {"q.norm.weight", kF32, {8}},
                  {"scale", kF32, {}}})
            .empty());
  // Indices beside plain weights: Swin's, CLIP's, a router's.
  CHECK(parts_of({{"attn.relative_position_bias_table", kF32, {9, 2}},
                  {"attn.relative_position_index", DType::kInt64, {4, 4}},
                  {"embeddings.class_embedding", kF32, {8}},
                  {"embeddings.position_ids", DType::kInt64, {1, 5}},
                  {"pool.weight", kF32, {4, 8}},
                  {"pool.indices", DType::kInt32, {4, 8}},
                  {"pool.scale_of_input", kF32, {4}},
                  {"gate.weight", kF32, {4, 8}},
                  {"gate.tid2eid", DType::kInt32, {16, 2}}})
            .empty());
}

TEST_CASE("what a quantizer module keeps of a weight is a part, plain as the weight may be") {
  const std::vector<Named> beside = {
      {"q.weight_quantizer._amax", kF32, {}},
      {"q.input_quantizer._amax", kF32, {}},
      {"q.weight_fake_quant.scale", kF32, {1}},
      {"q.weight_fake_quant.zero_point", DType::kInt32, {1}},
      {"q.weight_fake_quant.activation_post_process.min_val", kF32, {}},
      {"stub.scale", kF32, {1}},
      {"stub.zero_point", DType::kInt64, {1}}};
  std::set<std::string> wanted;
  for (const Named& tensor : beside) wanted.insert(tensor.name);
  std::vector<Named> tensors = beside;
  tensors.push_back({"q.weight", kBf16, {8, 8}});
  tensors.push_back({"vector_quantizer.embedding.weight", kF32, {8, 8}});
  tensors.push_back({"vector_quantizer.scale", kF32, {8}});
  tensors.push_back({"norm.eps", kF32, {}});
  CHECK(parts_of(tensors) == wanted);
  tensors = {{"q.weight", kU8, {8, 4}}, {"q.weight_quantizer._scale", kF32, {8, 1}}};
  CHECK(parts_of(tensors).size() == 2);
  // torch.ao's static quantization: the scale is that of the layer's output.
  tensors = {{"c.weight", DType::kQInt8, {8, 4}},
             {"c.scale", kF32, {}},
             {"c.zero_point", DType::kInt64, {}}};
  CHECK(parts_of(tensors).size() == 3);
}

TEST_CASE("names alone make no part") {
  CHECK(parts_of({{"q.weight", kF32, {8, 8}},
                  {"q.weight_scale", kF32, {8}},
                  {"q.scales", kF32, {8}},
                  {"attn.k_scale", kF32, {}},
                  {"index", DType::kInt64, {}},
                  {"index_scale", kF32, {}},
                  {"table.weight", DType::kInt32, {4, 4}}})
            .empty());
}

}  // namespace quant_parts_test
