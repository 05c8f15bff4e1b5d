// Writing safetensors: layout, shards, index, and the state that comes back.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_save.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/written_checkpoint.h"

namespace tessera::safetensors_write_test {
namespace {

using testing::SampleCase;
using testing::WrittenCheckpoint;

Manifest read_torch(const SampleCase& sample) {
  return testing::read_all(torch_save_driver(), {sample.directory.get(), "file.pt", sample.name});
}

Status refusal(const Manifest& source, const TargetRequest& request = {}) {
  try {
    safetensors_driver().output_plan(source, request);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

std::string names_of(const Manifest& manifest) {
  std::string out;
  for (const StateEntry& entry : manifest.state.entries) out += entry.name + "\n";
  return out;
}

std::string text_of(const Bytes& bytes) { return std::string(as_text(bytes)); }

}  // namespace

TEST_CASE("every safetensors sample survives a copy, byte for byte where one file stays one file") {
  for (const std::string& name : testing::sample_names("safetensors")) {
    CAPTURE(name);
    const SampleCase sample(name);
    const Manifest source = testing::read_all(safetensors_driver(), sample.place());
    const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory);
    const Manifest back = testing::read_all(safetensors_driver(), written.place());
    CHECK(testing::content_of(back, *written.directory) ==
          testing::expected_content(sample.expected));
    const auto stat = sample.directory->stat("model.safetensors");
    if (!stat || source.files.size() > 1) continue;
    // The reference writer orders tensors as we do; __metadata__ may come in another order.
    const auto original = sample.directory->open("model.safetensors");
    CHECK(written.files.at("model.safetensors").size() == original->size_bytes());
    const auto header = read_safetensors_header(ByteWindow::whole(*original));
    for (const SafetensorsTensor& tensor : header.tensors)
      CHECK(back.source(*back.find(tensor.name), 0).offset == header.data_offset + tensor.begin);
  }
}

TEST_CASE(
    "a whole training state comes back from safetensors: names, order, paths, values, containers") {
  for (const std::string name :
       {"adamw_zip", "nested_zip", "sgd_tied_zip", "plain_zip", "bare_tensor_zip"}) {
    CAPTURE(name);
    const SampleCase sample("torchsave/" + name);
    const Manifest source = read_torch(sample);
    TargetRequest request;
    request.opaque = KeepPolicy::kDrop;  // torch.device in nested_zip
    const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory, request);
    const Manifest back = testing::read_all(safetensors_driver(), written.place());
    CHECK(testing::content_of(back, *written.directory) ==
          testing::content_of(source, *sample.directory));
    auto values = testing::values_of(source, *sample.directory);
    values.erase("device");
    CHECK(testing::values_of(back, *written.directory) == values);
    StateDict kept = source.state;
    std::erase_if(kept.entries, [](const StateEntry& e) { return e.name == "device"; });
    REQUIRE(back.state.entries.size() == kept.entries.size());
    for (std::size_t i = 0; i < kept.entries.size(); ++i) {
      CHECK(back.state.entries[i].name == kept.entries[i].name);
      CHECK(back.state.entries[i].path == kept.entries[i].path);
      CHECK(back.state.entries[i].value.kind() == kept.entries[i].value.kind());
    }
    REQUIRE(back.state.containers.size() == source.state.containers.size());
    for (std::size_t i = 0; i < source.state.containers.size(); ++i) {
      CHECK(back.state.containers[i].path == source.state.containers[i].path);
      CHECK(back.state.containers[i].kind == source.state.containers[i].kind);
      CHECK(back.state.containers[i].attributes == source.state.containers[i].attributes);
    }
  }
}

TEST_CASE("a tensor inside a tuple is stored beside the others and goes back inside") {
  const SampleCase sample("torchsave/nested_zip");
  const Manifest source = read_torch(sample);
  TargetRequest request;
  request.opaque = KeepPolicy::kDrop;
  const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory, request);
  const Manifest back = testing::read_all(safetensors_driver(), written.place());
  const StateEntry* entry = back.state.find("a.b.c.2");
  REQUIRE(entry);
  REQUIRE(entry->value.kind() == Value::Kind::kTuple);
  const StoredTensor& inside = back.tensors[entry->value.as_list()[0].tensor_index()];
  CHECK(inside.embedded);
  CHECK(inside.name == "a.b.c.2#0");
  CHECK(back.state.find("a.b.c.2#0") == nullptr);
}

TEST_CASE("shards hold at most their limit, and the index lists every tensor once") {
  const SampleCase sample("safetensors/hf_sharded");
  const Manifest source = testing::read_all(safetensors_driver(), sample.place());
  TargetRequest request;
  request.own.set(kMaxShardSizeFlag, 900);
  const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory, request);
  const Value index = parse_json(written.files.at("model.safetensors.index.json"));
  const ValueDict& map = index.find("weight_map")->as_dict();
  CHECK(map.size() == 20);
  CHECK(std::is_sorted(map.begin(), map.end(), [](const auto& a, const auto& b) {
    return a.first.as_string() < b.first.as_string();
  }));
  std::uint64_t total = 0, shards = 0;
  for (const OutputFile& file : written.plan.files) {
    if (!file.path.ends_with(".safetensors")) continue;
    ++shards;
    const auto content = written.directory->open(file.path);
    const auto header = read_safetensors_header(ByteWindow::whole(*content));
    CHECK(content->size_bytes() - header.data_offset <= 900);
    CHECK(header.data_offset % 8 == 0);
    total += content->size_bytes() - header.data_offset;
    for (const auto& tensor : header.tensors)
      CHECK(index.find("weight_map")->find(tensor.name)->as_string() == file.path);
  }
  CHECK(shards >= 3);
  CHECK(written.files.contains("model-00001-of-0000" + std::to_string(shards) + ".safetensors"));
  CHECK(index.find("metadata")->find("total_size")->as_int() == static_cast<std::int64_t>(total));
  CHECK(written.plan.files.back().path == "model.safetensors.index.json");
  const Manifest back = testing::read_all(safetensors_driver(), written.place());
  CHECK(back.notes.empty());
  CHECK(testing::content_of(back, *written.directory) ==
        testing::expected_content(sample.expected));
}

TEST_CASE("a tensor above the shard limit stands alone") {
  const SampleCase sample("safetensors/no_metadata");
  const Manifest source = testing::read_all(safetensors_driver(), sample.place());
  TargetRequest request;
  request.own.set(kMaxShardSizeFlag, 1);
  const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory, request);
  CHECK(written.files.size() == 2);
  CHECK(written.files.contains("model-00001-of-00001.safetensors"));
}

TEST_CASE("the hf preset writes format=pt and an index, and leaves values out with a note") {
  const SampleCase sample("torchsave/plain_zip");
  const Manifest source = read_torch(sample);
  TargetRequest request;
  request.hf_preset = true;
  const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory, request);
  const Manifest back = testing::read_all(safetensors_driver(), written.place());
  CHECK(names_of(back) == "b\nw\n");
  CHECK(back.provenance == std::map<std::string, std::string>{{"__metadata__.format", "pt"}});
  CHECK(written.plan.notes.size() == 5);
  CHECK(text_of(written.files.at("model-00001-of-00001.safetensors")).find("tessera") ==
        std::string::npos);
}

TEST_CASE("one file can be asked for by name") {
  const SampleCase sample("safetensors/all_dtypes");
  const Manifest source = testing::read_all(safetensors_driver(), sample.place());
  TargetRequest request;
  request.single_file = true;
  const WrittenCheckpoint written(safetensors_driver(), source, *sample.directory, request);
  CHECK(written.plan.single_file);
  CHECK(testing::content_of(testing::read_all(safetensors_driver(), written.place()),
                            *written.directory) == testing::expected_content(sample.expected));
  request.own.set(kMaxShardSizeFlag, 200);
  CHECK(refusal(source, request).code == Code::kInvalidArgument);
}

TEST_CASE("what safetensors cannot hold is refused before any byte, naming it") {
  const SampleCase nested("torchsave/nested_zip"), quantized("torchsave/quantized_zip"),
      dtypes("torchsave/dtypes_zip"), plain("torchsave/plain_zip");
  const Status opaque = refusal(read_torch(nested));
  CHECK(opaque.code == Code::kUnsupported);
  CHECK_THAT(opaque.message, Catch::Contains("\"device\"") && Catch::Contains("torch.device"));
  CHECK_THAT(opaque.hint, Catch::Contains("--opaque drop"));
  CHECK_THAT(refusal(read_torch(quantized)).to_string(),
             Catch::Contains("qint8") && Catch::Contains("per_tensor"));
  CHECK_THAT(refusal(read_torch(dtypes)).to_string(), Catch::Contains("complex128"));
  TargetRequest request;
  request.values = KeepPolicy::kError;
  CHECK_THAT(refusal(read_torch(plain), request).message, Catch::Contains("\"step\""));
  request = {};
  request.world_size = 2;
  CHECK_THAT(refusal(read_torch(plain), request).hint, Catch::Contains("torch-dcp"));
  request = {};
  request.mesh = Mesh::parse("dp=2,tp=2");
  CHECK(refusal(read_torch(plain), request).code == Code::kUnsupported);
}

TEST_CASE("values can be dropped, with a note for each") {
  const SampleCase sample("torchsave/plain_zip");
  TargetRequest request;
  request.values = KeepPolicy::kDrop;
  const WrittenCheckpoint written(safetensors_driver(), read_torch(sample), *sample.directory,
                                  request);
  CHECK(written.plan.notes.size() == 5);
  CHECK(names_of(testing::read_all(safetensors_driver(), written.place())) == "b\nw\n");
}

TEST_CASE("an empty state becomes a valid empty file") {
  const WrittenCheckpoint written(safetensors_driver(), Manifest{},
                                  *MemoryFileSystem().open_directory("/"));
  CHECK(text_of(written.files.at("model.safetensors")) ==
        std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_CASE("an empty state in shards has no index, since an index would name no file") {
  TargetRequest request;
  request.own.set(kMaxShardSizeFlag, 1000);
  const WrittenCheckpoint written(safetensors_driver(), Manifest{},
                                  *MemoryFileSystem().open_directory("/"), request);
  CHECK(written.files.count("model.safetensors.index.json") == 0);
  CHECK(testing::read_all(safetensors_driver(), written.place()).tensors.empty());
}

}  // namespace tessera::safetensors_write_test
