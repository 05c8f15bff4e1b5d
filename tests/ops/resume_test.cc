// Cancel, --resume, and two runs at once on one DST.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/sanitized.h"

namespace resume_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Of the operations that are made to fail: all of them, but under the sanitizers.
constexpr std::uint64_t kEvery = kSanitized ? 5 : 1;

/// Calls `act` at the n-th write.
class ActAtWrite final : public ObservedFileSystem {
 public:
  ActAtWrite(FileSystem& inner, int at, std::function<void()> act)
      : ObservedFileSystem(inner), act_(std::move(act)), left_(at) {}

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kWrite && left_.fetch_sub(1) == 1) act_();
  }

 private:
  std::function<void()> act_;
  mutable std::atomic<int> left_;
};

/// Cancels the conversion at its n-th write. Afterwards `options` are those of a run that resumes.
void interrupt(MemoryFileSystem& fs, ConvertOptions& options, int at) {
  CancelToken token;
  options.cancel = &token;
  ActAtWrite cancelling(fs, at, [&] { token.cancel(); });
  CHECK_THROWS_AS(convert(cancelling, options), Error);
  options.cancel = nullptr;
  options.resume = true;
}

}  // namespace

TEST_CASE("a cancelled run is kept, named and continued to the same bytes") {
  int kept = 0;
  for (int at = 1; at < 40; at += 3) {
    INFO("cancelled at write " << at);
    MemoryFileSystem fs;
    std::string source = load_sample(fs, "dcp/fsdp2_w4");
    convert(fs, convert_options(source, "/want", 3));
    CancelToken token;
    ConvertOptions options = convert_options(source, "/out", 3);
    options.memory_limit_bytes = 1 << 20;
    options.cancel = &token;
    ActAtWrite cancelling(fs, at, [&] { token.cancel(); });
    bool cancelled = false;
    try {
      convert(cancelling, options);
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kCancelled);
      cancelled = true;
    }
    if (!cancelled) break;
    ++kept;
    CHECK_FALSE(fs.stat("/out"));
    CHECK_FALSE(kept_stage(fs, options).empty());
    options.cancel = nullptr;
    options.resume = true;
    options.threads = 2;
    ConvertReport report = convert(fs, options);
    CHECK(report.resumed_bytes + report.bytes_written == report.output_bytes);
    CHECK(bytes_below(fs, "/out") == bytes_below(fs, "/want"));
    CHECK(kept_stage(fs, options).empty());
  }
  CHECK(kept > 3);
}

TEST_CASE("a cancelled run with --no-keep leaves nothing") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  CancelToken token;
  ConvertOptions options = convert_options(source, "/out", 3);
  options.cancel = &token;
  options.keep = false;
  ActAtWrite cancelling(fs, 3, [&] { token.cancel(); });
  CHECK_THROWS_AS(convert(cancelling, options), Error);
  CHECK(kept_stage(fs, options).empty());
  CHECK_FALSE(fs.stat("/out"));
}

TEST_CASE("a resume of another request leaves what is kept to be resumed") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  ConvertOptions options = convert_options(source, "/out", 3);
  interrupt(fs, options, 6);
  const std::string kept = kept_stage(fs, options);
  REQUIRE_FALSE(kept.empty());
  ConvertOptions other = convert_options(source, "/out", 4);  // mistyped
  other.resume = true;
  try {
    convert(fs, other);
    FAIL("resumed what was never begun");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kNotFound);
    CHECK(error.status().hint.find(kept + " is another request's") != std::string::npos);
  }
  CHECK(convert(fs, options).resumed_bytes > 0);
  CHECK(kept_stage(fs, options).empty());
}

TEST_CASE("a resume that lacks room is refused before work and can be asked again") {
  class FullDisk final : public ObservedFileSystem {
   public:
    using ObservedFileSystem::ObservedFileSystem;
    std::uint64_t free_bytes(const std::string&) const override { return room; }
    std::uint64_t room = 0;
  };
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  ConvertOptions options = convert_options(source, "/out", 3);
  options.threads = 1;
  interrupt(fs, options, 4);
  const auto kept = fs.contents("/");
  std::uint64_t staged = 0;
  for (const FileInfo& file : fs.open_directory(kept_stage(fs, options))->list())
    staged += file.name.ends_with(".distcp") || file.name == ".metadata" ? file.size_bytes : 0;
  FullDisk disk(fs);
  try {
    convert(disk, options);
    FAIL("there is no room");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kResourceExhausted);
    CHECK(std::string(error.what()).find("bytes more") != std::string::npos);
  }
  CHECK(fs.contents("/") == kept);
  ConvertOptions plan = convert_options(source, "/plan", 3);
  plan.dry_run = true;
  const ConvertReport planned = convert(fs, plan);
  REQUIRE(staged > 0);
  REQUIRE(staged < planned.output_bytes);
  disk.room = planned.output_bytes + planned.seal_bytes - staged;
  CHECK(convert(disk, options).resumed_bytes > 0);
}

TEST_CASE("a source that was touched, and holds the same bytes, is continued") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  ConvertOptions options = convert_options(source, "/out", 3);
  interrupt(fs, options, 6);
  {  // the same bytes, written again: only the time tells
    Bytes bytes = fs.read_file("/source/__0_0.distcp");
    std::unique_ptr<WriteFile> file = fs.reopen("/source/__0_0.distcp", IoMode::kBuffered);
    file->write_at(0, ByteView(bytes).first(16));
    file->close();
  }
  const ConvertReport report = convert(fs, options);
  CHECK(report.published);
  CHECK(report.resumed_bytes > 0);
}

TEST_CASE("a source that was replaced by one of equal size starts anew, and that is said") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "safetensors/hf_sharded");
  convert(fs, convert_options(source, "/old", 3, "torch-dcp"));
  ConvertOptions options = convert_options(source, "/out", 3, "torch-dcp");
  interrupt(fs, options, 6);
  const std::string file = "/source/model-00001-of-00003.safetensors";
  Bytes bytes = fs.read_file(file);
  bytes.back() ^= std::byte{1};
  fs.write_file(file, bytes);
  const ConvertReport report = convert(fs, options);
  CHECK(report.published);
  CHECK(report.resumed_bytes == 0);
  CHECK(std::ranges::find(report.notes, "RESUME", note_code<Note>) != report.notes.end());
  CHECK(bytes_below(fs, "/out") != bytes_below(fs, "/old"));
  convert(fs, convert_options(source, "/again", 3, "torch-dcp"));
  CHECK(bytes_below(fs, "/out") == bytes_below(fs, "/again"));
}

namespace {

struct KilledAt {
  const char* out;
  const char* to;
  bool replaces = false;
  bool has_exchange = true;
};

std::map<std::string, std::string> shown(MemoryFileSystem& fs, const std::string& out) {
  if (out.find('.') == std::string::npos) return bytes_below(fs, out);
  return {{"", std::string(as_text(fs.read_file(out)))}};
}

}  // namespace

TEST_CASE("after a kill anywhere --resume finishes or says that nothing is there to continue",
          "[wide]") {
  const KilledAt kCases[] = {{"/out.pt", "torch-save"},
                             {"/out", "torch-dcp"},
                             {"/out", "torch-dcp", true, true},
                             {"/out", "torch-dcp", true, false}};
  for (const KilledAt& scenario : kCases) {
    int finished = 0, nothing = 0, lost = 0;
    std::map<std::string, std::string> want;
    for (std::uint64_t at = 1;; at += kEvery) {
      INFO(scenario.out << " killed at operation " << at << ", replaces " << scenario.replaces
                        << ", exchange " << scenario.has_exchange);
      MemoryFileSystem fs(MemoryFileSystemOptions{.has_exchange = scenario.has_exchange});
      std::string source = load_sample(fs, "dcp/fsdp2_w2");
      std::map<std::string, std::string> old;
      if (scenario.replaces) {
        convert(fs, convert_options(source, scenario.out, 3));
        fs.write_file(scenario.out + std::string("/beside"), as_bytes("the old one's own"));
        old = shown(fs, scenario.out);
      }
      ConvertOptions options = convert_options(source, scenario.out, std::nullopt, scenario.to);
      options.threads = 1;
      options.force = scenario.replaces;
      // Nothing works any more, removing the stage neither: what a kill leaves.
      FaultyFileSystem dying(fs, {.at = at, .sticky = true});
      bool killed = false;
      try {
        convert(dying, options);
      } catch (const Error&) {
        killed = true;
      }
      if (dying.faults() == 0) {
        CHECK(shown(fs, scenario.out) == want);
        break;
      }
      const bool published = fs.stat(scenario.out) && shown(fs, scenario.out) != old;
      if (!killed || published) {  // past the commit: there is no other output to be made of it
        if (published && !want.empty()) CHECK(shown(fs, scenario.out) == want);
        if (!scenario.replaces) continue;
      }
      options.resume = true;
      try {
        finished += convert(fs, options).published;
        if (want.empty()) want = shown(fs, scenario.out);
        CHECK(shown(fs, scenario.out) == want);
      } catch (const Error& error) {
        CHECK(error.code() == Code::kNotFound);
        CHECK(std::string(error.what()).find("nothing to") != std::string::npos);
        ++nothing;
        lost += finished > 0 && !published;
        if (published) CHECK(shown(fs, scenario.out) == want);
      }
    }
    fmt::print(
        "{} killed at any operation{}: {} runs finished by --resume, {} had nothing to continue, "
        "{} of them after they had written something\n",
        scenario.out,
        !scenario.replaces      ? ""
        : scenario.has_exchange ? " of a replacement by exchange"
                                : " of a replacement by two renames",
        finished, nothing, lost);
    CHECK(finished > 20 / static_cast<int>(kEvery));
    CHECK(nothing > 0);
    CHECK(lost == 0);
  }
}

// One record that is written in many pieces: a run that is stopped has written some of them before
// it could know.
TEST_CASE("a turned bit is refused however often a run is stopped and resumed") {
  MemoryFileSystem fs;
  std::string data;
  for (int i = 0; i < 8388608; ++i) data += static_cast<char>(i * 7 / 5);
  const std::string file = safetensors_of(
      R"({"w":{"dtype":"F32","shape":[2048,1024],"data_offsets":[0,8388608]}})", data);
  fs.write_file("/in/model.safetensors", as_bytes(file));
  REQUIRE(convert(fs, convert_options("/in", "/source", 1, "torch-dcp")).published);
  OpenedCheckpoint opened = open_checkpoint(fs, "/source");
  opened.locate_all({});
  REQUIRE(opened.manifest.records.size() == 1);
  const Record record = opened.manifest.records[0];
  const std::string path = "/source/" + opened.manifest.files[record.file].path;
  const Bytes whole = fs.read_file(path);
  int resumed = 0;
  for (const std::uint64_t part : {0u, 1u, 4u, 7u})  // eighths of it
    for (int at = 1; at < 9; at += kSanitized ? 3 : 1) {
      Bytes bytes = whole;
      bytes[record.offset + record.length / 8 * part + 5] ^= std::byte{1};
      fs.write_file(path, bytes);
      ConvertOptions options = convert_options("/source", "/out", 3);
      options.threads = 1;
      options.memory_limit_bytes = 1;
      interrupt(fs, options, at);  // or refused at once
      INFO("stopped at write " << at << ", bit in eighth " << part);
      for (int again = 1; again < 4; ++again) {
        const bool kept = !kept_stage(fs, options).empty();
        resumed += kept;
        if (kept && again < 3) {
          interrupt(fs, options, again);
          continue;
        }
        bool published = true;
        try {
          convert(fs, options);
        } catch (const Error& error) {
          CHECK(error.code() == (kept ? Code::kCorrupt : Code::kNotFound));
          published = false;
        }
        REQUIRE_FALSE(published);
      }
    }
  CHECK(resumed > (kSanitized ? 10 : 30));
}

TEST_CASE("a resumed run that fails keeps what was kept, and a first one nothing", "[wide]") {
  int kept = 0, published = 0;
  std::uint64_t before = 0;
  {  // what there is to take over
    MemoryFileSystem fs;
    ConvertOptions options = convert_options(load_sample(fs, "dcp/fsdp2_w2"), "/out", 3);
    options.threads = 1;
    interrupt(fs, options, 4);
    before = convert(fs, options).resumed_bytes;
  }
  for (const int error : {ENOSPC, EIO}) {
    for (std::uint64_t at = 1;; at += kEvery) {
      INFO("errno " << error << " at operation " << at);
      MemoryFileSystem fs;
      std::string source = load_sample(fs, "dcp/fsdp2_w2");
      ConvertOptions options = convert_options(source, "/out", 3);
      options.threads = 1;
      interrupt(fs, options, 4);
      FaultyFileSystem failing(fs, {.at = at, .error = error});
      std::string hint;
      bool failed = false;
      try {
        convert(failing, options);
      } catch (const Error& thrown) {
        failed = true;
        hint = thrown.status().hint;
      }
      if (failing.faults() == 0) break;
      if (!failed || fs.stat("/out")) {
        ++published;
        continue;
      }
      const bool promised = hint.find("is kept in " + kept_stage(fs, options)) != std::string::npos;
      REQUIRE_FALSE(kept_stage(fs, options).empty());
      const ConvertReport report = convert(fs, options);
      CHECK(report.published);
      if (promised) CHECK(report.resumed_bytes >= before);
      kept += promised;
      CHECK(kept_stage(fs, options).empty());
      options.resume = false;
      CHECK_THROWS_AS(convert(fs, options), Error);  // it is there
    }
  }
  fmt::print("resumed runs that failed: {} kept and finished by the next, {} had published\n", kept,
             published);
  CHECK(kept > 50 / static_cast<int>(kEvery));

  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  ConvertOptions options = convert_options(source, "/out", 3);
  FaultyFileSystem full(fs, {.at = 6, .error = ENOSPC, .ops = io_op_bit(IoOp::kWrite)});
  CHECK_THROWS_AS(convert(full, options), Error);
  CHECK(full.faults() == 1);
  CHECK(kept_stage(fs, options).empty());
}

TEST_CASE("a resumed run keeps nothing that is wrong, or that --no-keep gives up") {
  for (const bool changed : {true, false}) {
    MemoryFileSystem fs;
    std::string source = load_sample(fs, "dcp/fsdp2_w4");
    ConvertOptions options = convert_options(source, "/out", 3);
    options.threads = 1;
    interrupt(fs, options, 4);
    options.keep = changed;
    Code code = Code::kOk;
    const auto run = [&](FileSystem& on) {
      try {
        convert(on, options);
      } catch (const Error& error) {
        code = error.code();
      }
    };
    if (changed) {
      ActAtWrite writing(fs, 3, [&] {
        const Bytes bytes = fs.read_file("/source/__0_0.distcp");
        fs.reopen("/source/__0_0.distcp", IoMode::kBuffered)
            ->write_at(0, ByteView(bytes).first(16));
      });
      run(writing);
      CHECK(code == Code::kCorrupt);
    } else {
      FaultyFileSystem full(fs, {.at = 4, .error = ENOSPC, .ops = io_op_bit(IoOp::kWrite)});
      run(full);
      CHECK(code == Code::kResourceExhausted);
    }
    CHECK(kept_stage(fs, options).empty());
    CHECK_FALSE(fs.stat("/out"));
  }
}

TEST_CASE("a second run on the same DST is refused while the first works") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  ConvertOptions options = convert_options(source, "/out", 3);
  Code second = Code::kOk;
  ActAtWrite inside(fs, 4, [&] {
    try {
      convert(fs, options);
    } catch (const Error& error) {
      second = error.code();
    }
  });
  CHECK(convert(inside, options).published);
  CHECK(second == Code::kAlreadyExists);
}

TEST_CASE("what an interrupted run left takes no room from the next") {
  // Room for one result and a little: the stage that a killed run leaves fills the disk.
  class SmallDisk final : public ObservedFileSystem {
   public:
    SmallDisk(FileSystem& inner, std::uint64_t room) : ObservedFileSystem(inner), room_(room) {}
    std::uint64_t free_bytes(const std::string&) const override {
      std::uint64_t used = 0;
      for (const FileInfo& entry : open_directory("/")->list()) {
        if (!entry.name.starts_with(".out.tmp-") || entry.type != FileType::kDirectory) continue;
        for (const FileInfo& file : open_directory("/" + entry.name)->list()) {
          used += file.size_bytes;
        }
      }
      return used < room_ ? room_ - used : 0;
    }

   private:
    std::uint64_t room_;
  };
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  std::uint64_t size = convert(fs, convert_options(source, "/want", 3)).output_bytes;
  SmallDisk disk(fs, size * 5 / 4);
  CancelToken token;
  ConvertOptions options = convert_options(source, "/out", 3);
  options.cancel = &token;
  ActAtWrite cancelling(disk, 6, [&] { token.cancel(); });
  CHECK_THROWS_AS(convert(cancelling, options), Error);
  REQUIRE(disk.free_bytes("/") < size);
  options.cancel = nullptr;
  CHECK(convert(disk, options).published);
  CHECK(bytes_below(fs, "/out") == bytes_below(fs, "/want"));
}

}  // namespace resume_test
