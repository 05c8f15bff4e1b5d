// torch.save samples, zip and legacy, against what torch.load gave; hostile files.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_save.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/written_checkpoint.h"

namespace tessera::torch_save_read_test {
namespace {

using testing::SampleCase;

/// The one file of a torch.save sample, or the folder of its parts.
Place place_of(const SampleCase& sample) {
  const std::vector<FileInfo> files = sample.directory->list();
  return {sample.directory.get(), files.size() == 1 ? files[0].name : "", sample.name};
}
Manifest read(const SampleCase& sample) {
  return testing::read_all(torch_save_driver(), place_of(sample));
}

std::vector<std::string> readable_samples() {
  std::vector<std::string> names = testing::sample_names("torchsave");
  std::erase_if(names, [](const std::string& name) {
    return name.find("rankfiles") != name.npos || name.ends_with("torchscript");
  });
  return names;
}

Status failure(const SampleCase& sample, const std::string& file) {
  try {
    const Place place{sample.directory.get(), file, file};
    const Manifest manifest = testing::read_all(torch_save_driver(), place);
    testing::content_of(manifest, *sample.directory);
    testing::values_of(manifest, *sample.directory);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace

TEST_CASE("every torch.save sample reads exactly as torch.load reads it") {
  const std::vector<std::string> names = readable_samples();
  CHECK(names.size() >= 27);
  for (const std::string& name : names) {
    CAPTURE(name);
    const SampleCase sample(name);
    CHECK(detect_format(place_of(sample)).driver == &torch_save_driver());
    const Manifest manifest = read(sample);
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
    CHECK(testing::values_of(manifest, *sample.directory) ==
          testing::expected_values(sample.expected));
    CHECK_FALSE(manifest.world_size.has_value());
    CHECK(manifest.dialect.find(name.ends_with("_legacy") ? "legacy" : "zip") != std::string::npos);
  }
}

TEST_CASE("a manifest alone has every name and shape, and reads no tensor") {
  for (const std::string& name : readable_samples()) {
    CAPTURE(name);
    const SampleCase sample(name);
    const Manifest pending = torch_save_driver().manifest(place_of(sample), {});
    const Manifest located = read(sample);
    REQUIRE(pending.tensors.size() == located.tensors.size());
    for (std::size_t i = 0; i < located.tensors.size(); ++i) {
      CHECK(pending.tensors[i].name == located.tensors[i].name);
      CHECK(pending.tensors[i].spec == located.tensors[i].spec);
      if (name.ends_with("_zip"))
        CHECK(pending.source(pending.tensors[i], 0).kind == Source::Kind::kPending);
    }
  }
}

TEST_CASE("some tensors can be located without the others, in several calls") {
  const SampleCase sample("torchsave/tied_views_zip");
  Manifest manifest = torch_save_driver().manifest(place_of(sample), {});
  const std::uint32_t first[] = {2}, rest[] = {0, 2, 5};
  torch_save_driver().locate(place_of(sample), manifest, first, {});
  CHECK(manifest.source(manifest.tensors[2], 0).kind == Source::Kind::kExtent);
  CHECK(manifest.source(manifest.tensors[0], 0).kind == Source::Kind::kPending);
  const Source before = manifest.source(manifest.tensors[2], 0);
  torch_save_driver().locate(place_of(sample), manifest, rest, {});
  CHECK(manifest.source(manifest.tensors[2], 0).offset == before.offset);
  CHECK(manifest.source(manifest.tensors[5], 0).kind == Source::Kind::kExtent);
}

TEST_CASE("storages keep their record's checksum, once per storage") {
  const SampleCase sample("torchsave/tied_views_zip");
  const Manifest manifest = read(sample);
  const auto record_of = [&](const char* name) {
    return manifest.source(*manifest.find(name), 0).record;
  };
  CHECK(record_of("embed.weight") != 0);
  CHECK(record_of("embed.weight") == record_of("transposed"));
  CHECK(record_of("tail_of_big") != record_of("embed.weight"));
  CHECK(manifest.records.size() == 2);
  const Record& record = manifest.records[record_of("embed.weight") - 1];
  CHECK(manifest.source(*manifest.find("transposed"), 0).side != 0);
  CHECK(manifest.source(*manifest.find("embed.weight"), 0).side == 0);
  CHECK(record.offset == manifest.source(*manifest.find("embed.weight"), 0).offset);
}

TEST_CASE("what torch.save knows of a tensor beyond its numbers is kept") {
  for (const std::string suffix : {"zip", "legacy"}) {
    CAPTURE(suffix);
    const SampleCase parameters("torchsave/parameter_" + suffix),
        quantized("torchsave/quantized_" + suffix);
    const Manifest p = read(parameters);
    CHECK(p.find("p")->is_parameter);
    CHECK(p.find("p")->requires_grad);
    CHECK(p.find("frozen")->is_parameter);
    CHECK_FALSE(p.find("frozen")->requires_grad);
    CHECK_FALSE(p.find("buf")->is_parameter);
    const Manifest q = read(quantized);
    const StoredTensor* per_tensor = q.find("per_tensor");
    REQUIRE(per_tensor->quant >= 0);
    CHECK(q.quant[static_cast<std::size_t>(per_tensor->quant)].scale == 0.1);
    CHECK(q.quant[static_cast<std::size_t>(per_tensor->quant)].zero_point == 3);
    const QuantParams& channels = q.quant[static_cast<std::size_t>(q.find("per_channel")->quant)];
    REQUIRE(channels.scales.is_tensor());
    const StoredTensor& scales = q.tensors[channels.scales.tensor_index()];
    CHECK(scales.embedded);
    CHECK(scales.spec == TensorSpec{DType::kFloat64, Shape{6}});
  }
}

TEST_CASE("a model and its optimizer side by side are one checkpoint") {
  const SampleCase sample("torchsave/fsdp1_full");
  const Manifest manifest = read(sample);
  REQUIRE(manifest.files.size() == 2);
  CHECK(manifest.files[0].path == "model.pt");
  const StateEntry* step = manifest.state.find("optim.state.embed.weight.step");
  REQUIRE(step);
  CHECK(step->path.front() == PathItem{PathItem::Kind::kKey, 0, "optim"});
  CHECK(manifest.source(manifest.tensors[step->value.tensor_index()], 0).file == 1);
}

TEST_CASE("the top object may be a tensor; its name is empty") {
  const Manifest manifest = read(SampleCase("torchsave/bare_tensor_zip"));
  REQUIRE(manifest.state.entries.size() == 1);
  CHECK(manifest.state.entries[0].name.empty());
  CHECK(manifest.state.entries[0].path.empty());
}

TEST_CASE("code is never run: TorchScript is refused by name") {
  const SampleCase script("torchsave/torchscript");
  const Status a = failure(script, "script.pt");
  CHECK(a.code == Code::kUnsupported);
  CHECK(a.context.file == "script.pt");
}

TEST_CASE("every hostile torch.save file is refused, naming the file") {
  const SampleCase folder("hostile", "");
  int seen = 0;
  for (const FileInfo& info : folder.directory->list()) {
    if (!info.name.ends_with(".pt") || info.name == "tuple_doubling.pt") continue;
    CAPTURE(info.name);
    ++seen;
    const Status status = failure(folder, info.name);
    CHECK((status.code == Code::kCorrupt || status.code == Code::kUnsupported));
    CHECK(status.context.file == info.name);
    CHECK_FALSE(std::filesystem::exists("ckpt_hostile_marker"));
  }
  CHECK(seen >= 15);
}

TEST_CASE("shared tuples are listed without expanding them, or refused") {
  const SampleCase folder("hostile", "");
  const Status status = failure(folder, "tuple_doubling.pt");
  CHECK((status.code == Code::kOk || status.code == Code::kCorrupt));
}

TEST_CASE("a flipped bit is found when the storage is read, and passes when checks are off") {
  const SampleCase folder("hostile", "");
  CHECK_THAT(failure(folder, "bit_flip_crc.pt").message, Catch::Contains("CRC"));
}

}  // namespace tessera::torch_save_read_test
