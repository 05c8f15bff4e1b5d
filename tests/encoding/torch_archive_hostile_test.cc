// The hostile torch files: each is refused quickly, with a message, by the step that
// hostile/README.md allows.
#include <catch2/catch.hpp>
#include <map>

#include "tests/support/archive_gather.h"
#include "tests/support/growth.h"

namespace torch_archive_hostile_test {

using namespace tessera;
using namespace tessera::test;
using testing::processor_seconds;

namespace {

struct Row {
  Code code;
  const char* says;
};

}  // namespace

TEST_CASE("hostile torch files are refused at once") {
  const std::map<std::string, Row> rows = {
      {"reduce_os_system.pt", {Code::kCorrupt, "refused as unsafe: global posix.system at byte"}},
      {"legacy_reduce_os_system.pt", {Code::kCorrupt, "refused as unsafe: global posix.system"}},
      {"global_eval.pt", {Code::kCorrupt, "refused as unsafe: global builtins.eval"}},
      {"deep_recursion.pt", {Code::kCorrupt, "nested deeper than 200 levels"}},
      {"bad_memo.pt", {Code::kCorrupt, "memo slot"}},
      {"stack_underflow.pt", {Code::kCorrupt, "the stack is empty"}},
      {"huge_binunicode.pt", {Code::kCorrupt, "4611686018427387904 bytes"}},
      {"truncated_zip.pt", {Code::kCorrupt, "no end of central directory"}},
      {"empty.pt", {Code::kCorrupt, "empty"}},
      {"zip_huge_entry.pt", {Code::kCorrupt, "has two sizes"}},
      {"deflate_bomb.pt", {Code::kUnsupported, "is compressed (method 8)"}},
      {"missing_record.pt", {Code::kCorrupt, "record data/0 is missing"}},
      {"duplicate_names.pt", {Code::kCorrupt, "two entries are named"}},
      {"view_past_storage.pt", {Code::kCorrupt, "leaves it"}},
  };
  for (const auto& [name, row] : rows) {
    INFO(name);
    const ByteFile file(read_whole(sample("hostile/" + name)));
    std::string message;
    Code code{};
    CHECK(processor_seconds([&] {
            code = code_of([&] { open_torch_archive(ByteWindow::whole(file), {.locate = true}); },
                           &message);
          }) < 1);
    CHECK(code == row.code);
    CHECK_THAT(message, Catch::Contains(row.says));
  }
}

TEST_CASE("shared children are not expanded") {
  const ByteFile file(read_whole(sample("hostile/tuple_doubling.pt")));
  const TorchArchive archive = open_torch_archive(ByteWindow::whole(file));
  int levels = 0;
  for (Value value = archive.root; value.kind() == Value::Kind::kTuple && !value.as_list().empty();
       ++levels) {
    const Value next = value.as_list().front();
    CHECK(next.node_id() == value.as_list().back().node_id());
    value = next;
  }
  CHECK(levels >= 60);
}

TEST_CASE("a flipped bit of tensor data shows against the record's CRC") {
  const ByteFile file(read_whole(sample("hostile/bit_flip_crc.pt")));
  const ByteWindow window = ByteWindow::whole(file);
  const TorchArchive archive = open_torch_archive(window, {.locate = true});
  int wrong = 0;
  for (const ArchiveStorage& storage : archive.storages) {
    CHECK(storage.has_crc);
    wrong += crc32(0, window.read(storage.offset, storage.size_bytes)) != storage.crc32;
  }
  CHECK(wrong == 1);
}

TEST_CASE("denied globals can be collected instead, for the list of globals") {
  const ByteFile file(read_whole(sample("hostile/reduce_os_system.pt")));
  const TorchArchive archive = open_torch_archive(
      ByteWindow::whole(file), {.collect_denied = true, .allow_opaque_root = true});
  REQUIRE(archive.globals.size() >= 1);
  const auto denied = std::find_if(archive.globals.begin(), archive.globals.end(), [](auto& use) {
    return use.verdict == GlobalUse::Verdict::kDenied;
  });
  REQUIRE(denied != archive.globals.end());
  CHECK(denied->name == "posix.system");
}

}  // namespace torch_archive_hostile_test
