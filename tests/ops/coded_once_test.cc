// A compressed item is decoded once by whatever looks at elements, however many blocks it serves,
// and each of them has the same room for it.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/counting_file_system.h>
#include <tessera/storage/memory_file_system.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <optional>

#include "tests/support/dcp_builder.h"

namespace coded_once_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::int64_t kRows = 512, kColumns = 4096;  // 8 MiB

Bytes compressed(ByteView bytes) {
  Bytes out(ZSTD_compressBound(bytes.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1));
  return out;
}

/// One checkpoint of one float32 tensor, stored as one zstd item.
struct OneItem {
  explicit OneItem(const std::string& path, int first = 0, std::int64_t rows = kRows) {
    const Bytes item = compressed(tensor_item({rows, kColumns}, first));
    item_bytes = item.size();
    BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {rows, kColumns}, {{{0, 0}, {rows, kColumns}}}}};
    metadata.items = {{"w",
                       Numbers{0, 0},
                       "__0_0.distcp",
                       0,
                       static_cast<std::int64_t>(item.size()),
                       {"stream.zstd/1"}}};
    memory.write_file(path + "/__0_0.distcp", item);
    memory.write_file(path + "/.metadata", build_metadata(metadata));
  }
  std::uint64_t item_bytes = 0;
  MemoryFileSystem memory;
};

struct Verb {
  const char* name;
  std::function<void(OpenedCheckpoint&, const TransferOptions&)> run;
};

const Verb kVerbs[] = {
    {"hash",
     [](OpenedCheckpoint& opened, const TransferOptions& t) { hash_checkpoint(opened, t); }},
    {"stat",
     [](OpenedCheckpoint& opened, const TransferOptions& t) {
       StatOptions options;
       options.transfer = t;
       stat_checkpoint(opened, options);
     }},
    {"show",
     [](OpenedCheckpoint& opened, const TransferOptions& t) {
       ShowOptions options;
       options.transfer = t;
       options.slice = parse_slice(":,3");  // an element of every row
       show(opened, "w", options);
     }},
};

TransferOptions transfer(std::uint64_t limit, int threads) {
  TransferOptions options;
  options.memory_limit_bytes = limit;
  options.threads = threads;
  return options;
}

/// How often the item was read while `run` looked at it: once to look inside, and once for each
/// time that it was decoded.
std::uint64_t reads_of(OneItem& item, const std::string& path,
                       const std::function<void(OpenedCheckpoint&)>& run) {
  CountingFileSystem fs(item.memory);
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  fs.reset();
  run(opened);
  return fs.of("__0_0.distcp").bytes_read / item.item_bytes;
}

}  // namespace

TEST_CASE("one item of many blocks is decoded once") {
  OneItem item("/ck");
  for (const Verb& verb : kVerbs) {
    for (const int threads : {1, 16}) {
      // The tensor is kept as a whole, or its blocks are asked for again and again.
      for (const std::uint64_t limit : {std::uint64_t{1} << 30, std::uint64_t{128} << 20}) {
        INFO(verb.name << ", threads " << threads << ", limit " << limit);
        CHECK(reads_of(item, "/ck", [&](OpenedCheckpoint& opened) {
                verb.run(opened, transfer(limit, threads));
              }) <= 2);
      }
    }
  }
}

TEST_CASE("diff decodes the items of both sides once, and finds what hangs on no thread") {
  OneItem a("/a"), b("/b", 7);
  OpenedCheckpoint other = open_checkpoint(b.memory, "/b");
  std::optional<TensorDiff> first;
  for (const int threads : {1, 3}) {
    DiffReport report;
    CHECK(reads_of(a, "/a", [&](OpenedCheckpoint& opened) {
            DiffOptions options;
            options.transfer = transfer(std::uint64_t{128} << 20, threads);
            report = diff_checkpoints(opened, other, options);
          }) <= 2);
    REQUIRE(report.tensors.size() == 1);
    const TensorDiff& found = report.tensors[0];
    CHECK(found.count == kRows * kColumns);
    if (!first) first = found;
    CHECK(found.l2 == first->l2);
    CHECK(found.cosine == first->cosine);
    CHECK(found.max_rel == first->max_rel);
  }
}

TEST_CASE("an item that one verb has no room for, none has") {
  OneItem item("/ck");
  const auto code_of = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  for (const auto& [limit, expected] :
       {std::pair(std::uint64_t{40} << 20, Code::kResourceExhausted),
        std::pair(std::uint64_t{120} << 20, Code::kOk)}) {
    const TransferOptions options = transfer(limit, 2);
    for (const Verb& verb : kVerbs) {
      INFO(verb.name << ", limit " << limit);
      CHECK(code_of([&] {
              OpenedCheckpoint opened = open_checkpoint(item.memory, "/ck");
              verb.run(opened, options);
            }) == expected);
    }
    CHECK(code_of([&] {
            OpenedCheckpoint a = open_checkpoint(item.memory, "/ck"),
                             b = open_checkpoint(item.memory, "/ck");
            DiffOptions diff;
            diff.transfer = options;
            diff_checkpoints(a, b, diff);
          }) == expected);
    CHECK(code_of([&] {
            VerifyOptions verify;
            verify.level = VerifyLevel::kFull;
            verify.transfer = options;
            verify_checkpoint(item.memory, "/ck", verify);
          }) == expected);
  }
}

TEST_CASE("the bytes that verbs decode grow with a compressed item, not with its square") {
  // Counted, not measured: decoding for each block would read the item once for each.
  const TransferOptions options = transfer(std::uint64_t{192} << 20, 16);
  for (const std::int64_t rows : {64, 256, 1024}) {
    OneItem item("/ck", 0, rows);
    for (const Verb& verb : kVerbs) {
      INFO(verb.name << ", rows " << rows);
      CHECK(reads_of(item, "/ck", [&](OpenedCheckpoint& opened) { verb.run(opened, options); }) <=
            2);
    }
    OpenedCheckpoint other = open_checkpoint(item.memory, "/ck");
    INFO("diff, rows " << rows);
    CHECK(reads_of(item, "/ck", [&](OpenedCheckpoint& opened) {
            DiffOptions diff;
            diff.transfer = options;
            diff.abs = 1;
            diff_checkpoints(opened, other, diff);
          }) <= 2);
  }
}

}  // namespace coded_once_test
