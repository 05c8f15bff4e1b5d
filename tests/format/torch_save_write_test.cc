// Writing torch.save files: what comes back, what is shared, what is refused.
#include <tessera/base/error.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_save.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/written_checkpoint.h"

namespace tessera::torch_save_write_test {
namespace {

using testing::SampleCase;
using testing::WrittenCheckpoint;

Manifest read(const SampleCase& sample) {
  const auto files = sample.directory->list();
  return testing::read_all(
      torch_save_driver(),
      {sample.directory.get(), (files.size() == 1 ? files[0].name : ""), sample.name});
}
TargetRequest one_file(std::string stem = "result") {
  TargetRequest request;
  request.single_file = true;
  request.file_stem = std::move(stem);
  return request;
}

std::vector<std::string> samples() {
  std::vector<std::string> names = testing::sample_names("torchsave");
  std::erase_if(names, [](const std::string& name) {
    return name.find("rankfiles") != name.npos || name.ends_with("torchscript");
  });
  return names;
}

}  // namespace

TEST_CASE("every torch.save sample comes back whole from a file of our own") {
  for (const std::string& name : samples()) {
    CAPTURE(name);
    const SampleCase sample(name);
    const Manifest source = read(sample);
    const WrittenCheckpoint written(torch_save_driver(), source, *sample.directory, one_file());
    const Manifest back = testing::read_all(torch_save_driver(), written.place());
    CHECK(testing::content_of(back, *written.directory) ==
          testing::expected_content(sample.expected));
    CHECK(testing::values_of(back, *written.directory) ==
          testing::expected_values(sample.expected));
    REQUIRE(back.state.entries.size() == source.state.entries.size());
    for (std::size_t i = 0; i < back.state.entries.size(); ++i) {
      CHECK(back.state.entries[i].name == source.state.entries[i].name);
      CHECK(back.state.entries[i].path == source.state.entries[i].path);
      if (!source.state.entries[i].value.is_tensor()) continue;
      const StoredTensor& a = source.tensors[source.state.entries[i].value.tensor_index()];
      const StoredTensor& b = back.tensors[back.state.entries[i].value.tensor_index()];
      CHECK(a.is_parameter == b.is_parameter);
      CHECK(a.requires_grad == b.requires_grad);
      CHECK((a.quant >= 0) == (b.quant >= 0));
    }
    REQUIRE(back.state.containers.size() == source.state.containers.size());
    for (std::size_t i = 0; i < back.state.containers.size(); ++i) {
      CHECK(back.state.containers[i].path == source.state.containers[i].path);
      CHECK(back.state.containers[i].kind == source.state.containers[i].kind);
      CHECK(back.state.containers[i].attributes == source.state.containers[i].attributes);
    }
  }
}

TEST_CASE("tied tensors share one storage; other views become tensors of their own") {
  const SampleCase sample("torchsave/sgd_tied_zip");
  const Manifest source = read(sample);
  const WrittenCheckpoint written(torch_save_driver(), source, *sample.directory, one_file());
  const Manifest back = testing::read_all(torch_save_driver(), written.place());
  const auto offset = [&](const char* name) { return back.source(*back.find(name), 0).offset; };
  CHECK(offset("model.head.weight") == offset("model.embed.weight"));
  CHECK(offset("model.head.weight") != offset("model.layers.0.up.weight"));
  std::size_t storages = 0;
  for (const Segment& segment : written.plan.segments)
    storages += segment.kind == Segment::Kind::kTensor;
  CHECK(storages == testing::expected_content(sample.expected).size() - 1);
}

TEST_CASE("a safetensors source becomes a flat dict") {
  const SampleCase sample("safetensors/all_dtypes");
  const Manifest source = testing::read_all(safetensors_driver(), sample.place());
  const WrittenCheckpoint written(torch_save_driver(), source, *sample.directory, one_file());
  const Manifest back = testing::read_all(torch_save_driver(), written.place());
  CHECK(testing::content_of(back, *written.directory) ==
        testing::expected_content(sample.expected));
  CHECK(back.state.find("layer.weight")->path == Path{{PathItem::Kind::kKey, 0, "layer.weight"}});
}

TEST_CASE("in a folder the file is checkpoint.pt") {
  const SampleCase sample("torchsave/plain_zip");
  const WrittenCheckpoint written(torch_save_driver(), read(sample), *sample.directory);
  REQUIRE(written.files.size() == 1);
  CHECK(written.files.begin()->first == "checkpoint.pt");
  // --verify reads the folder as it was written.
  const Manifest back = testing::read_all(torch_save_driver(), written.place());
  CHECK(testing::content_of(back, *written.directory) ==
        testing::expected_content(sample.expected));
}

TEST_CASE("the file's stem is the archive's top folder") {
  const SampleCase sample("torchsave/plain_zip");
  const WrittenCheckpoint written(torch_save_driver(), read(sample), *sample.directory,
                                  one_file("my-model"));
  const std::string text(as_text(written.files.at("")));
  CHECK(text.find("my-model/data.pkl") == 30);
}

TEST_CASE(
    "objects of unknown classes go along by default, with a warning, and can be dropped or "
    "refused") {
  const SampleCase sample("torchsave/nested_zip");
  const Manifest source = read(sample);
  const WrittenCheckpoint kept(torch_save_driver(), source, *sample.directory, one_file());
  REQUIRE(kept.plan.notes.size() == 1);
  CHECK_THAT(kept.plan.notes[0].message, Catch::Contains("torch.device"));
  TargetRequest request = one_file();
  request.opaque = KeepPolicy::kDrop;
  const WrittenCheckpoint dropped(torch_save_driver(), source, *sample.directory, request);
  CHECK(testing::read_all(torch_save_driver(), dropped.place()).state.find("device") == nullptr);
  CHECK_THAT(dropped.plan.notes.at(0).message, Catch::Contains("\"device\" was left out"));
  request.opaque = KeepPolicy::kError;
  CHECK_THROWS_WITH(torch_save_driver().output_plan(source, request),
                    Catch::Contains("\"device\""));
}

TEST_CASE("what one torch.save file cannot hold is refused") {
  const SampleCase sample("torchsave/plain_zip");
  const Manifest source = read(sample);
  TargetRequest request = one_file();
  request.world_size = 4;
  try {
    torch_save_driver().output_plan(source, request);
    FAIL("planned");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK_THAT(error.status().hint, Catch::Contains("--to torch-dcp"));
  }
  Manifest packed;
  packed.tensors.push_back({"w4", {DType::kFloat4, Shape{4}}, 0, 1});
  packed.chunks.add(Chunk::whole_of(Box::whole(Shape{4})), Source{.kind = Source::Kind::kExtent});
  packed.state.entries.push_back({"w4", {{PathItem::Kind::kKey, 0, "w4"}}, Value::tensor(0)});
  CHECK_THROWS_WITH(torch_save_driver().output_plan(packed, one_file()),
                    Catch::Contains("f4") && Catch::Contains("w4"));
}

TEST_CASE("the same input gives the same bytes") {
  const SampleCase sample("torchsave/adamw_zip");
  const Manifest source = read(sample);
  const WrittenCheckpoint a(torch_save_driver(), source, *sample.directory, one_file());
  const WrittenCheckpoint b(torch_save_driver(), read(sample), *sample.directory, one_file());
  CHECK(a.files == b.files);
}

}  // namespace tessera::torch_save_write_test
