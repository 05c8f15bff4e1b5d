// Writing HDF5: the tree, names, attributes, alignment, and the state that comes back.
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_save.h>
#include <tessera/reshard/tensor_reader.h>

#include <cmath>

#include "lib/format/hdf5/encode.h"
#include "lib/format/hdf5/report.h"
#include "lib/format/hdf5/tree.h"
#include "tests/format/hdf5_fixture.h"

namespace tessera::hdf5_write_test {
namespace {

using namespace testing;

Manifest read_torch(const SampleCase& sample, const std::string& file = "file.pt") {
  return read_all(torch_save_driver(), {sample.directory.get(), file, sample.name});
}

/// A state of small tensors with these names and paths; all bytes are inline.
class MadeState {
 public:
  void tensor(Path path, DType dtype, Shape shape) {
    StoredTensor t;
    t.name = dotted(path);
    t.spec = {dtype, std::move(shape)};
    t.first_chunk = manifest_.chunks.size();
    t.chunk_count = 1;
    Bytes bytes(static_cast<std::size_t>(t.spec.size_bytes()));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(manifest_.tensors.size() * 7 + i);
    Source source;
    source.kind = Source::Kind::kInline;
    source.side = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
    manifest_.inline_bytes.push_back(std::move(bytes));
    manifest_.chunks.add(Chunk::whole_of(Box::whole(t.spec.shape)), source);
    const auto index = static_cast<std::uint32_t>(manifest_.tensors.size());
    manifest_.state.entries.push_back({t.name, std::move(path), Value::tensor(index)});
    manifest_.tensors.push_back(std::move(t));
  }
  void value(Path path, Value value) {
    std::string name = dotted(path);
    manifest_.state.entries.push_back({std::move(name), std::move(path), std::move(value)});
  }
  Manifest& manifest() { return manifest_; }

 private:
  Manifest manifest_;
};

PathItem key(std::string text) { return {PathItem::Kind::kKey, 0, std::move(text)}; }
PathItem index(std::int64_t i) { return {PathItem::Kind::kIndex, i, ""}; }

struct Written {
  MemoryFileSystem nothing;
  std::unique_ptr<Directory> from;
  WrittenCheckpoint checkpoint;
  explicit Written(const Manifest& source, const TargetRequest& request = {})
      : from((nothing.create_directory("/from"), nothing.open_directory("/from"))),
        checkpoint(hdf5_driver(), source, *from, request) {}
  const Bytes& bytes() const { return checkpoint.files.begin()->second; }
};

/// Everything that is read back equals the source, entry by entry.
void check_same(const Manifest& back, const Manifest& source) {
  REQUIRE(back.state.entries.size() == source.state.entries.size());
  for (std::size_t i = 0; i < source.state.entries.size(); ++i) {
    const StateEntry& a = back.state.entries[i];
    const StateEntry& b = source.state.entries[i];
    CHECK(a.name == b.name);
    CHECK(a.path == b.path);
    if (!b.value.is_tensor()) {
      CHECK(a.value == b.value);
    } else {
      CHECK(back.tensors[a.value.tensor_index()].spec ==
            source.tensors[b.value.tensor_index()].spec);
    }
  }
  REQUIRE(back.state.containers.size() == source.state.containers.size());
  for (std::size_t i = 0; i < source.state.containers.size(); ++i) {
    CHECK(back.state.containers[i].path == source.state.containers[i].path);
    CHECK(back.state.containers[i].kind == source.state.containers[i].kind);
    CHECK(back.state.containers[i].attributes == source.state.containers[i].attributes);
  }
}

}  // namespace

TEST_CASE("a whole training state comes back from hdf5: names, order, paths, values, containers") {
  if (!has_hdf5()) return;
  for (const std::string name : {"adamw_zip", "sgd_tied_zip", "plain_zip", "dtypes_basic_zip",
                                 "parameter_zip", "bare_tensor_zip"}) {
    CAPTURE(name);
    const SampleCase sample("torchsave/" + name);
    const Manifest source = read_torch(sample);
    const WrittenCheckpoint written(hdf5_driver(), source, *sample.directory);
    const Manifest back = read_all(hdf5_driver(), written.place());
    CHECK(content_of(back, *written.directory) == content_of(source, *sample.directory));
    check_same(back, source);
  }
}

TEST_CASE("a tensor inside a tuple goes back inside from hdf5") {
  if (!has_hdf5()) return;
  const SampleCase sample("torchsave/nested_zip");
  const Manifest source = read_torch(sample);
  TargetRequest request;
  request.opaque = KeepPolicy::kDrop;
  const WrittenCheckpoint written(hdf5_driver(), source, *sample.directory, request);
  const Manifest back = read_all(hdf5_driver(), written.place());
  auto values = values_of(source, *sample.directory);
  values.erase("device");
  CHECK(values_of(back, *written.directory) == values);
}

TEST_CASE("hdf5 to hdf5 to hdf5 is the same file") {
  if (!has_hdf5()) return;
  const SampleCase sample("torchsave/adamw_zip");
  const Manifest source = read_torch(sample);
  const WrittenCheckpoint once(hdf5_driver(), source, *sample.directory);
  const Manifest back = read_all(hdf5_driver(), once.place());
  const WrittenCheckpoint twice(hdf5_driver(), back, *once.directory);
  CHECK(once.files == twice.files);
}

TEST_CASE("values have one place: an attribute where hdf5 has a type, else tessera.state") {
  if (!has_hdf5()) return;
  MadeState made;
  const Path group{key("optim"), key("param_groups"), index(0)};
  const auto at = [&](const char* name) {
    Path path = group;
    path.push_back(key(name));
    return path;
  };
  made.tensor({key("w")}, DType::kFloat32, {2, 3});
  made.value(at("lr"), Value::real(0.1));
  made.value(at("nan"), Value::real(std::nan("")));
  made.value(at("betas"), Value::list({Value::real(0.9), Value::real(0.999)}, Value::Kind::kTuple));
  made.value(at("flag"), Value::boolean(true));
  made.value(at("flags"), Value::list({Value::boolean(false), Value::boolean(true)}));
  made.value(at("step"), Value::integer(-7));
  made.value(at("huge"), Value::big_integer("123456789012345678901234567890"));
  made.value(at("name"), Value::string("größe"));
  made.value(at("empty"), Value::string(""));
  made.value(at("names"), Value::list({Value::string("a"), Value::string("")}));
  made.value(at("none"), Value());
  made.value(at("mixed"), Value::list({Value::integer(1), Value::real(1)}));
  made.value(at("nothing"), Value::list({}));
  made.value(at("long"), Value::string(std::string(70000, 'x')));
  made.value(at("nul"), Value::string(std::string("a\0b", 3)));
  made.value(at("bytes"), Value::bytes("\xff\x00 raw"));
  made.value({key("tessera.version")}, Value::integer(99));
  made.value({key("epoch")}, Value::integer(3));
  made.value({key("__odd"), key("a/b")}, Value::integer(4));
  const Written written(made.manifest());
  const Manifest back = read_all(hdf5_driver(), written.checkpoint.place());
  check_same(back, made.manifest());
  CHECK(back.notes.empty());
}

TEST_CASE("names that are no links, and paths that cross, come back from hdf5") {
  if (!has_hdf5()) return;
  MadeState made;
  const Shape shape{3};
  made.tensor({key("a")}, DType::kInt16, shape);
  made.tensor({key("a"), key("b")}, DType::kInt16, shape);  // a dataset stands in the way
  made.tensor({key("x/y"), key("")}, DType::kInt16, shape);
  made.tensor({key("."), key("..")}, DType::kInt16, shape);
  made.tensor({key("x%2Fy"), key("%")}, DType::kInt16, shape);  // taken by an escaped one
  made.tensor({key("tessera.state")}, DType::kInt16, shape);
  made.tensor({key("größe"), index(10)}, DType::kInt16, shape);
  made.tensor({key("größe"), index(9)}, DType::kInt16, shape);
  made.tensor({key("m"), key("layers.0.weight")}, DType::kInt16, shape);
  const Written written(made.manifest());
  const Manifest back = read_all(hdf5_driver(), written.checkpoint.place());
  check_same(back, made.manifest());
  CHECK(content_of(back, *written.checkpoint.directory) ==
        content_of(made.manifest(), *written.from));
}

TEST_CASE("every dtype with whole bytes comes back from hdf5; others are refused by name") {
  if (!has_hdf5()) return;
  MadeState made;
  for (const DType dtype : all_dtypes())
    if (!is_sub_byte(dtype) && !is_quantized(dtype)) {
      made.tensor({key(std::string(torch_name(dtype))), key("v")}, dtype, {4, 2});
      made.tensor({key(std::string(torch_name(dtype))), key("scalar")}, dtype, {});
      made.tensor({key(std::string(torch_name(dtype))), key("empty")}, dtype, {0, 5});
    }
  const Written written(made.manifest());
  const Manifest back = read_all(hdf5_driver(), written.checkpoint.place());
  check_same(back, made.manifest());
  CHECK(content_of(back, *written.checkpoint.directory) ==
        content_of(made.manifest(), *written.from));
  for (const DType dtype : {DType::kQInt8, DType::kFloat4}) {
    MadeState refused;
    refused.tensor({key("t")}, dtype, {4});
    const Status status = status_of([&] { hdf5_driver().output_plan(refused.manifest(), {}); });
    CHECK(status.code == Code::kUnsupported);
    CHECK(status.context.tensor == "t");
  }
}

TEST_CASE("groups of any number of links have a sound tree") {
  if (!has_hdf5()) return;
  for (const int links : {0, 1, 8, 9, 256, 257, 3000}) {
    CAPTURE(links);
    MadeState made;
    for (int i = 0; i < links; ++i)
      made.tensor({key("g"), key(std::to_string(i * 7919 % 10007))}, DType::kUInt8, {1});
    const Written written(made.manifest());
    const Manifest back = read_all(hdf5_driver(), written.checkpoint.place());
    check_same(back, made.manifest());
    CHECK(content_of(back, *written.checkpoint.directory) ==
          content_of(made.manifest(), *written.from));
  }
}

TEST_CASE("data stands aligned, in the order of the state, each tensor one extent") {
  MadeState made;
  made.tensor({key("z")}, DType::kUInt8, {5});
  made.tensor({key("large")}, DType::kUInt8, {1 << 20});
  made.tensor({key("a")}, DType::kFloat32, {3});
  const OutputPlan plan = hdf5_driver().output_plan(made.manifest(), {});
  plan.check(made.manifest());
  CHECK(plan.files.at(0).path == "checkpoint.h5");
  std::vector<std::uint32_t> order;
  for (const Segment& segment : plan.segments) {
    if (segment.kind != Segment::Kind::kTensor) continue;
    order.push_back(segment.tensor);
    CHECK(segment.offset % (segment.length >= (1 << 20) ? 4096 : 64) == 0);
  }
  CHECK(order == std::vector<std::uint32_t>{0, 1, 2});
}

TEST_CASE("hdf5 holds one rank, and at most 32 dimensions") {
  MadeState made;
  made.tensor({key("t")}, DType::kUInt8, Shape(std::vector<std::int64_t>(33, 1)));
  CHECK(status_of([&] { hdf5_driver().output_plan(made.manifest(), {}); }).code ==
        Code::kUnsupported);
  MadeState plain;
  plain.tensor({key("t")}, DType::kUInt8, {1});
  TargetRequest request;
  request.world_size = 2;
  const Status status = status_of([&] { hdf5_driver().output_plan(plain.manifest(), request); });
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.hint.find("torch-dcp") != std::string::npos);
}

TEST_CASE("damage to a file of ours is found") {
  if (!has_hdf5()) return;
  MadeState made;
  made.tensor({key("w")}, DType::kFloat32, {2});
  made.value({key("text")}, Value::string(std::string(3000, 'x')));
  const Written written(made.manifest());
  const auto changed = [&](std::string_view from, std::string_view to) {
    std::string text(as_text(written.bytes()));
    const std::size_t at = text.find(from);
    REQUIRE(at != text.npos);
    text.replace(at, to.size(), to);
    MemoryFileSystem fs;
    fs.write_file("/c/x.h5", as_bytes(text));
    const auto directory = fs.open_directory("/c");
    return status_of([&] { read_all(hdf5_driver(), {directory.get(), "x.h5", "c"}); }).code;
  };
  CHECK(changed("{\"values\"", "{\"values!") == Code::kCorrupt);
  CHECK(changed("{\"values\"", "[") == Code::kCorrupt);
  CHECK(changed("\"entries\"", "\"Entries\"") == Code::kCorrupt);
  CHECK(changed("xxxx", "yyyy") == Code::kOk);
}

TEST_CASE("links keep their dict's names, and conflicts end in flat ones") {
  h5::NameTree tree;
  CHECK(tree.add_leaf({key("model"), key("layers.0.weight")}, 0) == "model/layers.0.weight");
  CHECK(tree.add_leaf({key("model"), key("layers.0.weight"), key("x"), index(1)}, 1) ==
        "model/layers.0.weight.x.1");
  CHECK(tree.add_leaf({key("model")}, 2) == "model~");
  CHECK(tree.add_leaf({key("a/b"), key(".")}, 3) == "a%2Fb/%2E");
  std::string path;
  CHECK_FALSE(tree.group(Path{key("model~")}, path));
  CHECK(tree.group(Path{key("model"), index(0)}, path));
  CHECK(path == "model/0");
}

}  // namespace tessera::hdf5_write_test
