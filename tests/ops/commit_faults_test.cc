// The n-th file-system operation fails, for every n and every writer: the old output stays whole,
// no temporary stays.
#include <tessera/base/error.h>
#include <tessera/format/safetensors.h>
#include <tessera/storage/faulty_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/sanitized.h"

namespace commit_faults_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Writer {
  const char* name;
  const char* destination;
  const char* format;
};

/// What a reader sees. One file may be without its seal.
std::map<std::string, std::string> shown_of(std::map<std::string, std::string> all) {
  std::erase_if(all, [](const auto& entry) {
    return entry.first.starts_with(".") || entry.first.ends_with(".tessera.json");
  });
  return all;
}

std::map<std::string, std::string> without_locks(std::map<std::string, std::string> all) {
  std::erase_if(all, [](const auto& entry) { return entry.first.ends_with(".lock"); });
  return all;
}

}  // namespace

TEST_CASE("the n-th operation fails: old or new, never a mix, nothing left") {
  constexpr Writer kWriters[] = {
      {"torch-dcp", "/work/out", "torch-dcp"},
      {"torch-save", "/work/out.pt", "torch-save"},
      {"safetensors", "/work/out.safetensors", "safetensors"},
      {"safetensors shards", "/work/out", "hf"},
  };
  for (const Writer& writer : kWriters) {
    for (bool sticky : {false, true}) {
      MemoryFileSystem fs;
      std::string source = load_sample(fs, "dcp/fsdp2_w2_model_only");
      fs.make_directories("/work");
      ConvertOptions options =
          convert_options(source, writer.destination, std::nullopt, writer.format);
      options.force = true;
      convert(fs, options);  // the old output
      auto old = without_locks(fs.contents("/work"));
      ConvertOptions repair = options;
      if (std::string(writer.format) == "hf") options.own.set(kMaxShardSizeFlag, 20000);
      options.names.renames = {{"layers.0.*", "layers.zero.*"}};  // so that new differs from old
      std::map<std::string, std::string> fresh;
      for (std::uint64_t n = 1;; n += kSanitized ? 12 : 1) {
        INFO(writer.name << ", operation " << n << (sticky ? " and all later" : ""));
        REQUIRE(n < 5000);
        FaultyFileSystem faulty(fs, {.at = n, .error = EIO, .sticky = sticky});
        bool failed = false;
        bool replaced = false;  // only the seal is missing, and the message says so
        try {
          convert(faulty, options);
        } catch (const Error& error) {
          failed = true;
          replaced = error.status().message.find("is replaced and whole") != std::string::npos;
          CHECK(error.code() != Code::kInternal);
        }
        auto now = without_locks(fs.contents("/work"));
        if (faulty.faults() == 0) {
          CHECK_FALSE(failed);
          CHECK(now != old);
          break;
        }
        CHECK(faulty.sync_retries() == 0);
        bool left = std::any_of(now.begin(), now.end(),
                                [](const auto& entry) { return entry.first.starts_with("."); });
        if (!sticky && failed && left) {
          // Only a fault in the swap itself, after the seal: undone, but a crash could still bring
          // it back, so the stage waits for the next run.
          INFO(faulty.first_fault());
          bool sealed = std::any_of(now.begin(), now.end(), [](const auto& entry) {
            return entry.first.starts_with(".") && entry.first.find("/") != std::string::npos &&
                   entry.first.ends_with(".json");
          });
          CHECK(sealed);
        }
        // Whatever shows under the final name is old or new as a whole; what could not be cleaned
        // up (the disk was gone, or the fault hit the cleaning) goes with the next run.
        auto shown = shown_of(now);
        bool is_old = shown == shown_of(old);
        if (failed && !sticky) CHECK(is_old == !replaced);
        if (!is_old) {
          CHECK((shown == fresh || fresh.empty()));
          fresh = shown;
        }
        if (now == old) continue;
        convert(fs, repair);
        CHECK(without_locks(fs.contents("/work")) == old);
      }
    }
  }
}

}  // namespace commit_faults_test
