// Every torch.save sample and every item of the DCP samples against what PyTorch itself says about
// them.
#include <tessera/encoding/json.h>
#include <tessera/encoding/pickle_reader.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "tests/support/archive_gather.h"

namespace torch_archive_samples_test {

using namespace tessera;
using namespace tessera::test;
namespace fs = std::filesystem;

namespace {

Value expected_of(const fs::path& case_folder) {
  const std::string text = read_whole(case_folder / "expected.json");
  return parse_json(as_bytes(text), {.max_depth = 64});
}

std::string describe(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index) {
  const ArchiveTensor& t = archive.tensors.at(index);
  return std::string(torch_name(t.dtype)) + t.shape.to_string() + " " +
         hex(sha256(gather(window, archive, index)));
}

std::string describe(const Value& row) {
  std::vector<std::int64_t> extents;
  for (const Value& extent : row.find("shape")->as_list()) extents.push_back(extent.as_int());
  return row.find("dtype")->as_string() + Shape(extents).to_string() + " " +
         row.find("sha256")->as_string();
}

/// name -> dtype, shape, hash of every tensor, names joined by dots as in the samples.
using Listing = std::map<std::string, std::string>;

bool holds_entries(const Value& value) {
  if (value.is_tensor() || value.is_dict()) return true;
  if (value.kind() != Value::Kind::kList) return false;
  const ValueList& items = value.as_list();
  return std::any_of(items.begin(), items.end(), holds_entries);
}

void list_tensors(const ByteWindow& window, const TorchArchive& archive, const Value& value,
                  const std::string& name, Listing& out) {
  const auto below = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
  if (value.is_tensor()) {
    out[name] = describe(window, archive, value.tensor_index());
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict())
      list_tensors(window, archive, item,
                   below(key.is_string() ? key.as_string() : std::to_string(key.as_int())), out);
  } else if (holds_entries(value)) {
    for (std::size_t i = 0; i < value.as_list().size(); ++i)
      list_tensors(window, archive, value.as_list()[i], below(std::to_string(i)), out);
  }
}

Listing expected_listing(const Value& expected) {
  Listing out;
  for (const Value& row : expected.find("tensors")->as_list())
    out[row.find("key")->as_string()] = describe(row);
  return out;
}

}  // namespace

TEST_CASE("torch.save samples list and hash as PyTorch says") {
  const std::set<std::string> refused = {"torchscript", "whole_module"};
  int checked = 0;
  for (const auto& folder : fs::directory_iterator(sample("torchsave"))) {
    const fs::path file_path = folder.path() / "checkpoint" / "file.pt";
    if (!fs::exists(file_path) || refused.count(folder.path().filename().string())) continue;
    INFO(folder.path());
    const ByteFile file(read_whole(file_path));
    const ByteWindow window = ByteWindow::whole(file);
    CHECK(looks_like_torch_archive(window));
    TorchArchive archive = open_torch_archive(window);
    CHECK(archive.legacy == (folder.path().string().ends_with("_legacy")));
    locate_storages(window, archive);
    Listing listing;
    list_tensors(window, archive, archive.root, "", listing);
    CHECK(listing == expected_listing(expected_of(folder.path())));
    ++checked;
  }
  CHECK(checked >= 20);
}

TEST_CASE(
    "rank files with pickled ShardedTensors and DTensors open, their local tensors resolved") {
  int files = 0;
  for (const char* name : {"dtensor_rankfiles_w2", "fsdp1_local_rankfiles_w3",
                           "fsdp1_mesh_rankfiles_w2", "fsdp1_sharded_rankfiles_w2"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(sample("torchsave") + "/" + name + "/checkpoint")) {
      if (!entry.is_regular_file()) continue;
      INFO(entry.path());
      const ByteFile file(read_whole(entry.path()));
      const ByteWindow window = ByteWindow::whole(file);
      TorchArchive archive = open_torch_archive(window, {.locate = true});
      CHECK(archive.root.is_dict());
      CHECK(archive.tensors.size() > 1);
      for (std::uint32_t i = 0; i < archive.tensors.size(); ++i)
        CHECK_NOTHROW(gather(window, archive, i));
      for (const GlobalUse& use : archive.globals) {
        INFO(use.name);
        CHECK(use.verdict == GlobalUse::Verdict::kKnown);
      }
      ++files;
    }
  }
  CHECK(files >= 9);
}

TEST_CASE("TorchScript archives and whole modules are refused by name") {
  for (const auto& [name, word] : std::map<std::string, std::string>{
           {"torchscript/checkpoint/script.pt",
            "TorchScript archive of torch.nn.modules.container.Sequential"},
           {"whole_module/checkpoint/module.pt", "torch.nn.modules.container.Sequential"}}) {
    const ByteFile file(read_whole(sample("torchsave/" + name)));
    std::string message;
    CHECK(code_of([&] { open_torch_archive(ByteWindow::whole(file)); }, &message) ==
          Code::kUnsupported);
    CHECK_THAT(message, Catch::Contains(word));
  }
}

TEST_CASE("every other torch file among the samples opens") {
  int files = 0;
  for (const char* format : {"deepspeed", "fairscale", "megatron"}) {
    for (const auto& entry : fs::recursive_directory_iterator(sample(format))) {
      if (!entry.is_regular_file() || entry.path().extension() != ".pt") continue;
      INFO(entry.path());
      const ByteFile file(read_whole(entry.path()));
      const ByteWindow window = ByteWindow::whole(file);
      TorchArchive archive;
      CHECK_NOTHROW(archive = open_torch_archive(window, {.locate = true}));
      for (std::uint32_t i = 0; i < archive.tensors.size(); ++i)
        CHECK_NOTHROW(gather(window, archive, i));
      ++files;
    }
  }
  CHECK(files > 30);
}

namespace {

struct Item {
  std::string path;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool is_tensor = false;
  bool is_coded = false;
};

/// storage_data of a .metadata pickle.
std::vector<Item> items_of(const std::string& metadata) {
  const PickleGraph graph = read_pickle(as_bytes(metadata));
  const auto pairs = graph.dict_items(*graph.find(*graph.state(graph.root()), "storage_data"));
  std::vector<Item> out;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const auto key = *graph.state(pairs[i]);
    const auto info = *graph.state(pairs[i + 1]);
    Item item;
    item.path = graph.text(*graph.find(info, "relative_path"));
    item.offset = static_cast<std::uint64_t>(graph.integer(*graph.find(info, "offset")));
    item.length = static_cast<std::uint64_t>(graph.integer(*graph.find(info, "length")));
    item.is_tensor = graph.find(key, "offset").has_value() &&
                     graph.kind(*graph.find(key, "offset")) != PickleKind::kNone;
    item.is_coded = graph.find(info, "transform_descriptors").has_value();
    out.push_back(item);
  }
  return out;
}

}  // namespace

TEST_CASE("every item of the DCP samples opens: tensors as bare tensors, in one read") {
  int tensors = 0;
  int objects = 0;
  for (const char* format : {"dcp", "dcp-old", "olmo-core"}) {
    for (const auto& entry : fs::recursive_directory_iterator(sample(format))) {
      if (!entry.path().filename().string().ends_with(".metadata")) continue;
      std::map<std::string, std::unique_ptr<ByteFile>> files;
      for (const Item& item : items_of(read_whole(entry.path()))) {
        if (item.is_coded) continue;
        INFO(entry.path() << " " << item.path << " at " << item.offset);
        auto& file = files[item.path];
        if (!file)
          file = std::make_unique<ByteFile>(read_whole(entry.path().parent_path() / item.path));
        const ByteWindow window = ByteWindow::whole(*file).sub(item.offset, item.length);
        file->reads = 0;
        if (!looks_like_torch_archive(window)) {
          CHECK_FALSE(item.is_tensor);
          continue;
        }
        file->reads = 0;
        TorchArchive archive;
        CHECK_NOTHROW(archive = open_torch_archive(window, {.locate = true}));
        CHECK(file->reads == 1);
        CHECK(archive.root.is_tensor() == item.is_tensor);
        if (item.is_tensor) CHECK_NOTHROW(gather(window, archive, archive.root.tensor_index()));
        ++(item.is_tensor ? tensors : objects);
      }
    }
  }
  CHECK(tensors > 500);
  CHECK(objects > 100);
}

}  // namespace torch_archive_samples_test
