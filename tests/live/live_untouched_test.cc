// A load that is verified: elements that the read did not write are told by tensor and number, and
// values that look like what the memory was filled with are not.
#include <tessera/base/error.h>
#include <tessera/ops/open.h>
#include <tessera/storage/observed_file_system.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "lib/live/load_targets.h"
#include "lib/live/untouched.h"
#include "tests/support/live_job.h"
#include "tests/support/live_saved.h"

namespace live_untouched_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t kNumel = 64;

/// Gives back, for `bytes` from `offset` on, what the memory was filled with before each reading:
/// as if these had not been written. (`proofs` readings come before, which fill nothing.)
class Withheld final : public Directory {
 public:
  Withheld(const Directory& inner, std::uint64_t offset, std::uint64_t bytes, int proofs = 0)
      : inner_(inner), offset_(offset), bytes_(bytes), proofs_(proofs) {}
  const std::string& path() const override { return inner_.path(); }
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override {
    return std::make_unique<File>(*this, inner_.open(relative, mode));
  }
  std::optional<FileInfo> stat(std::string_view relative) const override {
    return inner_.stat(relative);
  }
  std::vector<FileInfo> list(std::string_view relative) const override {
    return inner_.list(relative);
  }

 private:
  class File final : public ReadFile {
   public:
    File(const Withheld& of, std::unique_ptr<ReadFile> inner) : of_(of), inner_(std::move(inner)) {}
    std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
    const std::string& path() const override { return inner_->path(); }
    void read_at(std::uint64_t offset, MutableBytes out) const override {
      inner_->read_at(offset, out);
      if (of_.offset_ < offset || of_.offset_ + of_.bytes_ > offset + out.size()) return;
      const std::byte canary = of_.readings_++ <= of_.proofs_ ? kFirstCanary : kSecondCanary;
      std::memset(out.data() + (of_.offset_ - offset), std::to_integer<int>(canary), of_.bytes_);
    }

   private:
    const Withheld& of_;
    std::unique_ptr<ReadFile> inner_;
  };
  const Directory& inner_;
  std::uint64_t offset_, bytes_;
  int proofs_;
  mutable int readings_ = 0;
};

/// Every folder of which withholds the same.
class WithheldFileSystem final : public ObservedFileSystem {
 public:
  WithheldFileSystem(FileSystem& inner, std::uint64_t offset, std::uint64_t bytes, int proofs)
      : ObservedFileSystem(inner), offset_(offset), bytes_(bytes), proofs_(proofs) {}
  std::unique_ptr<Directory> open_directory(const std::string& path) const override {
    folders_.push_back(inner().open_directory(path));
    return std::make_unique<Withheld>(*folders_.back(), offset_, bytes_, proofs_);
  }

 private:
  std::uint64_t offset_, bytes_;
  int proofs_;
  mutable std::vector<std::unique_ptr<Directory>> folders_;
};

}  // namespace

TEST_CASE("elements that a verified load did not write are told by tensor and number") {
  MemoryFileSystem fs;
  std::vector<float> saved(kNumel, 1), loaded(kNumel);
  save_one(fs, [&](LiveState& state) {
    state.add("w", {DType::kFloat32, {kNumel}, {}, saved.data()});
  });
  OpenedCheckpoint opened = open_checkpoint(fs, "/run/a");
  opened.locate_all({});
  const StoredTensor& tensor = opened.manifest.tensors.at(0);
  const std::uint64_t offset = opened.manifest.chunks.source(tensor.first_chunk).offset;
  LoadTargets targets;
  targets.add(
      {0, Chunk::whole_of(Box::whole({kNumel})), reinterpret_cast<std::byte*>(loaded.data()), {}},
      "w");
  targets.plan(opened.manifest);
  TransferOptions options;
  options.check_crc = false;  // which would tell first
  const Withheld directory(*opened.directory, offset + 5 * sizeof(float), 2 * sizeof(float));
  CHECK_THROWS_WITH(targets.read({opened.manifest, directory, options}, /*canaries=*/true),
                    Contains("\"w\"") && Contains("2 elements of") &&
                        Contains("were not written by the load, the first is number 5"));
  const Withheld nothing(*opened.directory, 0, 0);
  CHECK_NOTHROW(targets.read({opened.manifest, nothing, options}, true));
  CHECK(loaded == saved);
}

TEST_CASE("load under verify tells what was not written, however it is kept safe") {
  const LoadSafety safety =
      GENERATE(LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace);
  const bool scratch = GENERATE(false, true);
  CAPTURE(static_cast<int>(safety), scratch);
  constexpr std::int64_t kMany = 100'000;  // more than is read with the header
  MemoryFileSystem fs;                     // a file without checksums, which would tell first
  std::string header = R"({"w":{"dtype":"F32","shape":[100000],"data_offsets":[0,400000]}})";
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header + std::string(kMany * sizeof(float), '\1');
  fs.create_directory("/run");
  fs.write_file("/run/a.safetensors", as_bytes(file));
  const std::uint64_t offset = sizeof(length) + header.size() + 90'000 * sizeof(float);
  const int proofs = safety == LoadSafety::kReadTwice && !scratch ? 1 : 0;
  std::vector<float> memory(kMany, 7);
  LiveState state;
  state.add("w", {DType::kFloat32, {kMany}, {}, memory.data()});
  state.edit([&](LiveContents& contents) { contents.tensors[0].scratch = scratch; });
  const auto message = [&](bool verify) {
    WithheldFileSystem files(fs, offset, 3 * sizeof(float), proofs);
    LoadPolicy policy = loading(files);
    policy.verify = verify;
    policy.safety = safety;
    policy.memory_limit_bytes = 64 << 10;
    const auto ranks = single_rank();
    try {
      load("/run/a.safetensors", state, *ranks, policy);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(message(true),
             Contains("\"w\"") && Contains("3 elements of") &&
                 Contains("were not written by the load, the first is number 90000"));
  if (safety == LoadSafety::kAside && !scratch) CHECK(memory == std::vector<float>(kMany, 7));
  CHECK(message(false).empty());
}

TEST_CASE("a verified load proves tensors of which some ranks hold nothing") {
  const std::string damaged = GENERATE("a", "b", "c");
  MemoryFileSystem fs;
  std::vector<float> saved(kNumel, 1);
  save_one(fs, [&](LiveState& state) {
    for (const char* name : {"a", "b", "c"})
      state.add(name, {DType::kFloat32, {kNumel}, {}, saved.data()});
  });
  OpenedCheckpoint opened = open_checkpoint(fs, "/run/a");
  opened.locate_all({});
  for (const StoredTensor& tensor : opened.manifest.tensors) {
    if (tensor.name != damaged) continue;
    const Source source = opened.manifest.chunks.source(tensor.first_chunk);
    const std::string file = "/run/a/__0_0.distcp";
    std::string bytes(as_text(fs.read_file(file)));
    bytes[source.offset + 7] = static_cast<char>(bytes[source.offset + 7] ^ 4);
    fs.write_file(file, as_bytes(bytes));
  }
  auto groups = thread_ranks(3);
  const auto messages = on_ranks(groups, [&](RankGroup& ranks) {
    std::vector<float> memory(3 * kNumel);
    float* place = memory.data();
    LiveState state;  // a half of each on ranks 0 and 1
    if (ranks.rank() < 2)
      for (const char* name : {"a", "b", "c"}) {
        state.add_piece(name, {DType::kFloat32, {kNumel}},
                        {Chunk::whole_of({{ranks.rank() * kNumel / 2}, {kNumel / 2}}), place, {}});
        place += kNumel;
      }
    LoadPolicy policy = loading(fs);
    policy.verify = true;
    load("/run/a", state, ranks, policy);
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("corrupt") && Contains("\"" + damaged + "\""));
}

TEST_CASE("values that look like what a verified load fills memory with are loaded as any") {
  MemoryFileSystem fs;
  std::vector<float> saved(kNumel, 1), loaded(kNumel);
  for (const auto& [first, canary] : {std::pair(3, kFirstCanary), std::pair(9, kSecondCanary)})
    std::memset(saved.data() + first, std::to_integer<int>(canary), 4 * sizeof(float));
  save_one(fs, [&](LiveState& state) {
    state.add("w", {DType::kFloat32, {kNumel}, {}, saved.data()});
  });
  LiveState state;
  state.add("w", {DType::kFloat32, {kNumel}, {}, loaded.data()});
  LoadPolicy policy = loading(fs);
  policy.verify = true;
  CHECK(load_one(state, policy).loaded.size() == 1);
  CHECK(std::memcmp(loaded.data(), saved.data(), kNumel * sizeof(float)) == 0);
}

TEST_CASE("a tensor with a hole is refused before a byte lands, however the load is kept safe") {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/sample_checkpoints/hostile/dcp_hole";
  for (const LoadSafety safety :
       {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
    std::vector<float> memory(24, 7);
    LiveState state;
    state.add("a", {DType::kFloat32, {6, 4}, {}, memory.data()});
    LoadPolicy policy;
    policy.safety = safety;
    const auto ranks = single_rank();
    std::string message;
    try {
      load(path, state, *ranks, policy);
    } catch (const Error& error) {
      message = error.what();
    }
    CHECK_THAT(message, Contains("tensor \"a\": coverage hole: region [3:6,0:4] is in no chunk") &&
                            !Contains("partly filled"));
    CHECK(memory == std::vector<float>(24, 7));
  }
}

}  // namespace live_untouched_test
