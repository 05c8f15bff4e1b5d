// Every writer is asked for a tensor of every element type: it plans, or it says that it cannot
// hold the type, in the one wording that names tensor, format and type. A hint ends the matter.
#include <tessera/format/registry.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

namespace dtype_refusal_test {

using namespace tessera;

/// {"model": {"w": a tensor of this type, "v": a float32 one}}.
Manifest source_of(DType dtype) {
  Manifest source;
  source.files.push_back({"x.bin", 1 << 20});
  std::uint64_t offset = 0;
  for (const auto& [name, type] : {std::pair("w", dtype), std::pair("v", DType::kFloat32)}) {
    const Path path{key_item("model"), key_item(name)};
    StoredTensor tensor;
    tensor.name = dotted(path);
    tensor.spec = {type, Shape{8, 4}};
    tensor.first_chunk = source.chunks.size();
    tensor.chunk_count = 1;
    tensor.kind = TensorKind::kParam;
    Source stored{.kind = Source::Kind::kExtent};
    stored.offset = offset;
    stored.length = static_cast<std::uint64_t>(tensor.spec.size_bytes());
    offset += 4096;
    source.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)), stored);
    source.state.entries.push_back(
        {tensor.name, path, Value::tensor(static_cast<std::uint32_t>(source.tensors.size()))});
    source.tensors.push_back(std::move(tensor));
  }
  return source;
}

Status plan(const FormatDriver& driver, DType dtype) {
  TargetRequest request;
  if (driver.id().starts_with("megatron"))
    request.mesh = Mesh({{"dp", 1}});
  else
    request.world_size = 1;
  try {
    driver.output_plan(source_of(dtype), request).check(source_of(dtype));
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

TEST_CASE("what a format cannot hold is said in one wording, by the name of the tensor") {
  std::set<std::string> refused;
  for (const FormatDriver* driver : all_formats()) {
    if (!driver->capabilities().writes) continue;
    const std::string format(driver->id());
    REQUIRE(plan(*driver, DType::kFloat32).message == "");
    for (const DType dtype : all_dtypes()) {
      if (is_quantized(dtype)) continue;  // never without its quantizer's parameters
      const Status status = plan(*driver, dtype);
      const std::string type(torch_name(dtype));
      CAPTURE(format, type, status.to_string());
      // FairScale and DeepSpeed put both tensors into one buffer, which has one type.
      const bool mixed = status.message.find("of the same group") != std::string::npos ||
                         status.message.find("has one dtype") != std::string::npos;
      if (mixed) CHECK((format == "fairscale-fsdp" || format.starts_with("deepspeed-")));
      if (status.code == Code::kOk || mixed) continue;
      refused.insert(format);
      CHECK(status.code == Code::kUnsupported);
      CHECK(status.message == format + " cannot hold " + type);
      CHECK(status.context.tensor == "model.w");
      // Formats hold float32, as was required above: a cast to it ends the matter.
      const std::string cast = "cast it with --keep-dtype \"model.w=float32\"";
      const std::string leave = "leave it out with --exclude \"model.w\"";
      CHECK((status.hint == cast || status.hint == leave));
      CHECK_FALSE((status.hint == cast && dtype == DType::kFloat32));
    }
  }
  CHECK(refused == std::set<std::string>{"deepspeed-universal", "deepspeed-zero", "fairscale-fsdp",
                                         "hdf5", "megatron-dist", "megatron-torch", "safetensors",
                                         "torch-checkpointing", "torch-dcp", "torch-rank-files",
                                         "torch-save"});
}

}  // namespace dtype_refusal_test
