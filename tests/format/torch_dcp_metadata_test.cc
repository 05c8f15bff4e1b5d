// `.metadata` in every dialect decodes to one model; whatever is not DCP metadata is refused.
#include <tessera/base/error.h>
#include <tessera/tensor/dtype.h>

#include <catch2/catch.hpp>

#include "lib/format/torch_dcp/metadata.h"
#include "lib/format/torch_dcp/names.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/note_text.h"

namespace tessera::torch_dcp_metadata_test {
namespace {

using testing::build_metadata;
using testing::BuiltMetadata;

/// One matrix in two row chunks and one value.
BuiltMetadata small() {
  BuiltMetadata made;
  made.tensors = {{"w", "float32", {4, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}}}};
  made.values = {"epoch"};
  made.items = {{"w", {{0, 0}}, "__0_0.distcp", 0, 100, {}},
                {"w", {{2, 0}}, "__1_0.distcp", 0, 100, {}},
                {"epoch", {}, "__0_0.distcp", 100, 50, {}}};
  return made;
}

dcp::DcpMetadata parse(const BuiltMetadata& metadata) {
  return dcp::parse_metadata(build_metadata(metadata), ".metadata");
}

Status failure(const Bytes& bytes) {
  try {
    dcp::parse_metadata(bytes, ".metadata");
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}
Status failure(const BuiltMetadata& metadata) { return failure(build_metadata(metadata)); }

void check_small(const dcp::DcpMetadata& parsed) {
  REQUIRE(parsed.entries.size() == 2);
  CHECK(parsed.entries[0].name == "w");
  CHECK(parsed.entries[0].spec.to_string() == "float32 [4,3]");
  CHECK(parsed.entries[0].requires_grad);
  REQUIRE(parsed.entries[0].chunk_count == 2);
  CHECK(parsed.origin(parsed.entries[0], 1)[0] == 2);
  CHECK(parsed.sizes(parsed.entries[0], 1)[1] == 3);
  CHECK_FALSE(parsed.entries[1].is_tensor);
  REQUIRE(parsed.storage.size() == 3);
  CHECK(parsed.files == std::vector<std::string>{"__0_0.distcp", "__1_0.distcp"});
  CHECK(parsed.storage[1].file == 1);
  CHECK(parsed.storage[2].offset == 100);
  CHECK_FALSE(parsed.storage[2].has_origin);
}

}  // namespace

TEST_CASE("metadata of every release decodes to one model") {
  BuiltMetadata metadata = small();
  SECTION("2.3") {
    check_small(parse(metadata));
    CHECK(parse(metadata).dialect == "DCP, PyTorch 2.3");
  }
  SECTION("1.13") {
    metadata.module = "torch.distributed._shard.checkpoint.metadata";
    metadata.storage_module = "torch.distributed._shard.checkpoint.filesystem";
    metadata.properties_module = "torch.distributed._shard.sharded_tensor.metadata";
    metadata.enum_name = "MEM_FORMAT_ENCODING";
    check_small(parse(metadata));
    CHECK(parse(metadata).dialect == "DCP, PyTorch 1.13");
  }
  SECTION("2.0 to 2.2, the enum by getattr") {
    metadata.properties_module = "torch.distributed._shard.sharded_tensor.metadata";
    metadata.enum_name = "MEM_FORMAT_ENCODING";
    metadata.enum_by_getattr = true;
    check_small(parse(metadata));
    CHECK(parse(metadata).dialect == "DCP, PyTorch 2.0 to 2.2");
  }
  SECTION("2.4 to 2.9") {
    metadata.storage_meta = [](PickleEmitter& out) { out.none(); };
    check_small(parse(metadata));
    CHECK(parse(metadata).dialect == "DCP, PyTorch 2.4 to 2.9");
  }
  SECTION("2.10 and newer") {
    metadata.storage_meta = [](PickleEmitter& out) { out.none(); };
    metadata.version = "1.0.0";
    check_small(parse(metadata));
    CHECK(parse(metadata).dialect == "DCP, PyTorch 2.10 or newer (version 1.0.0)");
  }
}

TEST_CASE("checkpoint_id may be any kind of path") {
  BuiltMetadata metadata = small();
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"pathlib", "PosixPath"},
                                                        {"pathlib._local", "PosixPath"},
                                                        {"pathlib", "WindowsPath"},
                                                        {"pathlib", "PurePosixPath"},
                                                        {"pathlib", "Path"}}) {
    CAPTURE(module, name);
    metadata.storage_meta = testing::storage_meta_with_path(module, name, {"/", "tmp", "ck"});
    CHECK(parse(metadata).provenance.at("checkpoint_id") == "/tmp/ck");
    CHECK(parse(metadata).provenance.at("save_id") == "1234");
  }
}

TEST_CASE("unknown attributes become notes") {
  BuiltMetadata metadata = small();
  metadata.extra_name = "all_local_plans";
  metadata.extra = [](PickleEmitter& out) { out.empty_list(); };
  const dcp::DcpMetadata parsed = parse(metadata);
  REQUIRE(parsed.notes.size() == 1);
  CHECK(testing::note_code(parsed.notes[0]) == "CK020");
  CHECK_THAT(parsed.notes[0].message, Catch::Contains("all_local_plans"));
  CHECK_THAT(parsed.dialect, Catch::EndsWith("Megatron attributes"));
}

TEST_CASE("paths come from planner_data, else the key is the path") {
  BuiltMetadata metadata = small();
  CHECK(parse(metadata).entries[0].path == Path{{PathItem::Kind::kKey, 0, "w"}});
  metadata.tensors[0].name = "model.3";
  for (auto& item : metadata.items)
    if (item.name == "w") item.name = "model.3";
  metadata.planner_data = [](PickleEmitter& out) {
    out.empty_dict();
    out.mark();
    out.string("model.3");
    out.string("model");
    out.integer(3);
    out.tuple_n(2);
    out.set_items();
  };
  CHECK(parse(metadata).entries[0].path ==
        Path{{PathItem::Kind::kKey, 0, "model"}, {PathItem::Kind::kIndex, 3, ""}});
  CHECK(parse(metadata).entries[1].path == Path{{PathItem::Kind::kKey, 0, "epoch"}});
}

TEST_CASE("a path that is another name's is damage and the key stands for itself") {
  BuiltMetadata metadata = small();
  metadata.planner_data = [](PickleEmitter& out) {
    out.empty_dict();
    out.mark();
    out.string("w");
    out.string("v");
    out.tuple_n(1);
    out.set_items();
  };
  const dcp::DcpMetadata parsed = parse(metadata);
  CHECK(parsed.entries[0].path == Path{{PathItem::Kind::kKey, 0, "w"}});
  REQUIRE(parsed.notes.size() == 1);
  CHECK_THAT(parsed.notes[0].message, Catch::Contains("the path of \"w\""));
}

TEST_CASE("an object of another writer's class is recognised by its name") {
  BuiltMetadata metadata = small();
  metadata.storage_module = "olmo_core.distributed.checkpoint.filesystem";
  check_small(parse(metadata));
}

TEST_CASE("malformed metadata is refused, saying where") {
  BuiltMetadata metadata = small();
  SECTION("negative offset") { metadata.items[0].offset = -8; }
  SECTION("negative length") { metadata.items[0].length = -1; }
  SECTION("negative chunk origin") { metadata.tensors[0].chunks[0].first = {-1, 0}; }
  SECTION("negative size") { metadata.tensors[0].size = {-4, 3}; }
  SECTION("a chunk of another rank") { metadata.tensors[0].chunks[0].second = {2}; }
  SECTION("overflowing size") { metadata.tensors[0].size = {1LL << 40, 1LL << 40}; }
  SECTION("overflowing chunk") { metadata.tensors[0].chunks[0].first = {INT64_MAX, 0}; }
  SECTION("a name twice") { metadata.values = {"w"}; }
  const Status status = failure(metadata);
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.file == ".metadata");
  CHECK_FALSE(status.message.empty());
}

TEST_CASE("an unknown dtype is unsupported by name") {
  BuiltMetadata metadata = small();
  metadata.tensors[0].dtype = "float3_e1m1";
  const Status status = failure(metadata);
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("torch.float3_e1m1"));
  CHECK(status.context.tensor == "w");
}

TEST_CASE("the top object must be Metadata") {
  PickleEmitter out;
  out.empty_dict();
  CHECK(failure(out.finish()).code == Code::kCorrupt);
  CHECK(failure(Bytes{}).code == Code::kCorrupt);
  BuiltMetadata metadata = small();
  metadata.module = "somewhere.else";
  CHECK(failure(metadata).code == Code::kCorrupt);
}

TEST_CASE("code in metadata is refused") {
  BuiltMetadata metadata = small();
  metadata.extra_name = "x";
  SECTION("os.system") {
    metadata.extra = [](PickleEmitter& out) {
      out.global("os", "system");
      out.string("true");
      out.tuple_n(1);
      out.reduce();
    };
  }
  SECTION("getattr of something else") {
    metadata.extra = [](PickleEmitter& out) {
      out.global("__builtin__", "getattr");
      out.global("torch", "Size");
      out.string("__class__");
      out.tuple_n(2);
      out.reduce();
    };
  }
  CHECK(failure(metadata).code == Code::kCorrupt);
}

TEST_CASE("shared nodes cannot blow metadata up") {
  // One list of 2000 chunks that 2000 tensors share: 4 million chunks from 200 KB.
  PickleEmitter out;
  const auto begin = [&](const char* name) {
    out.global(dcp::kMetadataModule, name);
    out.empty_tuple();
    out.new_object();
    out.empty_dict();
    out.mark();
  };
  const auto end = [&] {
    out.set_items();
    out.build();
  };
  const auto size = [&](std::int64_t n) {
    out.integer(n);
    out.tuple_n(1);
  };
  begin("Metadata");
  out.string("state_dict_metadata");
  out.empty_dict();
  out.mark();
  std::uint32_t chunks = 0;
  for (int t = 0; t < 2000; ++t) {
    out.string("t" + std::to_string(t));
    begin("TensorStorageMetadata");
    out.string("properties");
    out.global(dcp::kMetadataModule, "TensorProperties");
    out.empty_tuple();
    out.new_object();
    out.global("torch", "float32");
    out.tuple_n(1);
    out.build();
    out.string("size");
    size(2000);
    out.string("chunks");
    if (t > 0) {
      out.get(chunks);
    } else {
      out.empty_list();
      out.mark();
      for (int c = 0; c < 2000; ++c) {
        begin("ChunkStorageMetadata");
        out.string("offsets");
        size(c);
        out.string("sizes");
        size(1);
        end();
      }
      out.append_items();
      chunks = out.put();
    }
    end();
  }
  out.set_items();
  out.string("storage_data");
  out.empty_dict();
  end();
  const Status status = failure(out.finish());
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(status.message, Catch::Contains("expands"));
}

TEST_CASE("rank numbers are read from file names") {
  CHECK(dcp::rank_of_data_file("__12_3.distcp") == 12);
  CHECK_FALSE(dcp::rank_of_data_file("__12.distcp"));
  CHECK_FALSE(dcp::rank_of_data_file("__x_0.distcp"));
  CHECK_FALSE(dcp::rank_of_data_file("model.distcp"));
  CHECK_FALSE(dcp::rank_of_data_file("__99999999999_0.distcp"));
  CHECK(dcp::rank_of_metadata_file("__7.metadata") == 7);
  CHECK_FALSE(dcp::rank_of_metadata_file(".metadata"));
  CHECK_FALSE(dcp::rank_of_metadata_file("__7.metadata.tmp"));
}

}  // namespace tessera::torch_dcp_metadata_test
