// The short way to read `.metadata` against the long one: what it takes it takes alike, what it
// does not take it leaves, whatever was done to the bytes.
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "lib/format/torch_dcp/metadata.h"
#include "lib/format/torch_dcp/plain_metadata.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/sanitized.h"

namespace tessera::torch_dcp_plain_test {
namespace {

namespace fs = std::filesystem;
using dcp::DcpMetadata;
using testing::draws;

std::optional<DcpMetadata> plain(const Bytes& bytes) {
  MemoryFileSystem memory;
  memory.write_file("/m/.metadata", bytes);
  const auto directory = memory.open_directory("/m");
  const auto file = directory->open(".metadata");
  return dcp::read_plain_metadata(ByteWindow::whole(*file), ".metadata");
}

/// Everything the manifest is made from, in words.
std::vector<std::string> described(const DcpMetadata& m) {
  std::vector<std::string> lines;
  const auto numbers = [](std::span<const std::int64_t> list) {
    std::string text;
    for (const std::int64_t n : list) text += std::to_string(n) + ",";
    return text;
  };
  for (const dcp::DcpEntry& e : m.entries) {
    std::string line = e.name + " " + dotted(e.path) + (e.requires_grad ? " grad " : " ");
    for (const PathItem& item : e.path) line += std::to_string(static_cast<int>(item.kind));
    if (e.is_tensor) line += " " + e.spec.to_string();
    for (std::size_t c = 0; c < e.chunk_count; ++c)
      line += " [" + numbers(m.origin(e, c)) + "|" + numbers(m.sizes(e, c)) + "]";
    lines.push_back(line);
  }
  for (const dcp::DcpStorage& s : m.storage) {
    lines.push_back(std::to_string(s.entry) + " in " + m.files.at(s.file) + " at " +
                    std::to_string(s.offset) + "+" + std::to_string(s.length) + " " +
                    (s.has_origin ? numbers(m.origin(s)) : "value") + std::to_string(s.codecs));
  }
  for (const std::string& file : m.files) lines.push_back(file);
  for (const GlobalUse& use : m.globals)
    lines.push_back(use.name + std::to_string(static_cast<int>(use.verdict)) + use.file);
  for (const auto& [key, value] : m.provenance) lines.push_back(key + "=" + value);
  for (const Note& note : m.notes) lines.push_back(note.message);
  for (const auto& [e, shape] : m.regrouped) lines.push_back(shape.to_string());
  lines.push_back(m.dialect + (m.has_planner_data ? " planner" : "") +
                  std::to_string(m.plan_count + static_cast<std::int64_t>(m.orphans.size())) +
                  std::to_string(m.codecs.size()));
  return lines;
}

Bytes file_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

std::vector<fs::path> samples() {
  std::vector<fs::path> found;
  for (const char* folder : {"dcp", "dcp-old", "olmo-core", "hostile"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) /
                                                              "sample_checkpoints" / folder))
      if (entry.path().filename() == ".metadata") found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

/// Whether the short way took it; what it took is checked.
bool check_alike(const Bytes& bytes) {
  const std::optional<DcpMetadata> taken = plain(bytes);
  if (!taken) return false;
  std::optional<DcpMetadata> whole;
  try {
    whole = dcp::parse_metadata(bytes, ".metadata");
  } catch (const Error& error) {
    FAIL("taken by the short way, refused by the long one: " << error.what());
  }
  REQUIRE(described(*taken) == described(*whole));
  return true;
}

}  // namespace

TEST_CASE("plain metadata reads alike by the short way and the long one") {
  int taken = 0;
  for (const fs::path& path : samples()) {
    CAPTURE(path.string());
    const bool took = check_alike(file_bytes(path));
    taken += took;
    if (path.string().find("/dcp/fsdp2_w4/") != std::string::npos) CHECK(took);
    if (path.string().find("torch-2.3.1") != std::string::npos) CHECK(took);
    if (path.string().find("torch-2.2.2") != std::string::npos) CHECK_FALSE(took);
  }
  CHECK(taken >= 25);
}

TEST_CASE("damaged metadata is left to the long way or read alike") {
  const std::uint64_t seed = 20261121;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  int taken = 0, left = 0;
  for (const fs::path& path : samples()) {
    const Bytes good = file_bytes(path);
    if (good.size() < 100 || good.size() > 40000 || !plain(good)) continue;
    for (int round = 0; round < draws(60); ++round) {
      Bytes bad = good;
      for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
        const std::size_t at = random() % bad.size();
        switch (random() % 4) {
          case 0:
            bad[at] ^= static_cast<std::byte>(1u << random() % 8);
            break;
          case 1:
            bad[at] = static_cast<std::byte>(random());
            break;
          case 2:
            bad.erase(bad.begin() + static_cast<std::ptrdiff_t>(at));
            break;
          default:
            bad.insert(bad.begin() + static_cast<std::ptrdiff_t>(at), bad[random() % bad.size()]);
        }
      }
      (check_alike(bad) ? taken : left) += 1;
    }
  }
  CHECK(taken > draws(20));  // a name or a number changed
  CHECK(left > draws(500));
}

TEST_CASE("metadata larger than the reader's buffer reads alike") {
  testing::BuiltMetadata made;
  for (int t = 0; t < 600; ++t) {
    testing::BuiltMetadata one;
    const std::string name = "layers." + std::to_string(t) + ".weight";
    std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> chunks;
    for (std::int64_t c = 0; c < 32; ++c) {
      chunks.push_back({{c * 300, 0}, {300, 70000}});
      made.items.push_back({name,
                            {{c * 300, 0}},
                            "__" + std::to_string(c) + "_0.distcp",
                            static_cast<std::int64_t>(t) * 90000000,
                            84000000 + c,
                            {}});
    }
    made.tensors.push_back({name, "bfloat16", {9600, 70000}, {}});
    for (auto& [origin, sizes] : chunks) made.tensors.back().chunks.push_back({origin, sizes});
  }
  const Bytes bytes = testing::build_metadata(made);
  REQUIRE(bytes.size() > (std::size_t{2} << 20));
  CHECK(check_alike(bytes));
}

}  // namespace tessera::torch_dcp_plain_test
