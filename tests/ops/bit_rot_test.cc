// Damage to a sealed checkpoint: every single bit, bursts, a million random damages, cut, extended,
// swapped and missing files. verify --full finds each and names the file and, in tensor bytes, the
// tensor; so does a hash report made before.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/live/save.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/verify.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <random>
#include <set>

#include "lib/ops/seal/check.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sanitized.h"

namespace bit_rot_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// In memory at /ck, with a hash report of it at /hash.json.
struct Sealed {
  MemoryFileSystem fs;
  std::string path;                    // to open
  std::map<std::string, Bytes> files;  // below /ck, the seal included
  std::vector<std::string> names;

  explicit Sealed(bool single_file) {
    std::vector<float> w(12), b(5);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i) * 1.5f;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i) - 9;
    LiveState state;
    state.add("w", {DType::kFloat32, {4, 3}, {}, w.data()});
    state.add("b", {DType::kFloat32, {5}, {}, b.data()});
    SaveOptions options;
    options.file_system = &fs;
    const auto ranks = single_rank();
    save(single_file ? "/dcp" : "/ck", state, *ranks, options);
    path = "/ck";
    if (single_file) {
      fs.make_directories("/ck");
      path = "/ck/one.safetensors";
      convert(fs, convert_options("/dcp", path, std::nullopt));
    }
    for (const auto& [name, content] : fs.contents("/ck")) {
      const ByteView bytes = as_bytes(content);
      files[name] = Bytes(bytes.begin(), bytes.end());
      names.push_back(name);
    }
    write_report();
  }

  void write_report() {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    opened.locate_all({});
    fs.write_file("/hash.json", as_bytes(hash_report(hash_checkpoint(opened).tensors)));
  }

  bool is_seal(const std::string& name) const { return name.ends_with(".json"); }
  void set(const std::string& name, const Bytes& content) { fs.write_file("/ck/" + name, content); }
  void mend(const std::string& name) { set(name, files.at(name)); }

  /// Which tensor's bytes each byte of `name` is; "" where it is none's.
  std::vector<std::string> owners(const std::string& name) {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    opened.locate_all({});
    std::vector<std::string> owner(files.at(name).size());
    for (const StoredTensor& tensor : opened.manifest.tensors) {
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
        const Source& source = opened.manifest.source(tensor, c);
        if (opened.manifest.files[source.file].path != name) continue;
        for (std::uint64_t i = 0; i < source.length; ++i) owner[source.offset + i] = tensor.name;
      }
    }
    return owner;
  }
};

/// What verify says of damage: that there is some, and where.
struct Verdict {
  bool found = false;
  std::set<std::string> files;
  std::string text;  // every finding
};

Verdict verdict_of(Sealed& sealed, const std::string& against = "",
                   VerifyLevel level = VerifyLevel::kFull) {
  VerifyOptions options;
  options.level = level;
  options.against = against;
  options.transfer.threads = 1;
  Verdict verdict;
  try {
    const VerifyReport report = verify_checkpoint(sealed.fs, sealed.path, options);
    verdict.found = !report.ok;
    for (const Note& note : report.findings) {
      if (note.severity != Severity::kError) continue;
      verdict.files.insert(note.file);
      verdict.text +=
          fmt::format("{} [{}] {}: {}\n", note_code(note), note.file, note.tensor, note.message);
    }
  } catch (const Error& error) {  // metadata that cannot be parsed any more
    REQUIRE(error.code() != Code::kInternal);
    verdict.found = true;
    verdict.files.insert(error.status().context.file);
    verdict.text = error.what();
  }
  return verdict;
}

bool names(const Verdict& verdict, const std::string& what) {
  return verdict.text.find(what) != std::string::npos;
}

/// A file of a few bytes that are changed under a reader.
class ChangingFile final : public ReadFile {
 public:
  explicit ChangingFile(const Bytes& bytes) : bytes_(bytes) {}
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }

 private:
  const Bytes& bytes_;
  std::string path_ = "changing";
};

}  // namespace

TEST_CASE("every single bit of a sealed checkpoint that turns is found and named") {
  int flips = 0, in_tensors = 0, against = 0;
  for (const bool single_file : {false, true}) {
    Sealed sealed(single_file);
    REQUIRE_FALSE(verdict_of(sealed, "/hash.json").found);
    for (const std::string& name : sealed.names) {
      const std::vector<std::string> owner = sealed.owners(name);
      Bytes bytes = sealed.files.at(name);
      for (std::size_t bit = 0; bit < bytes.size() * 8; bit += kSanitized ? 41 : 1) {
        bytes[bit / 8] ^= std::byte{1} << bit % 8;
        sealed.set(name, bytes);
        const Verdict verdict = verdict_of(sealed);
        ++flips;
        INFO("bit " << bit << " of " << name << "\n" << verdict.text);
        if (!verdict.found) FAIL("not found");
        const bool file_named = verdict.files.contains(name) || names(verdict, name) ||
                                (sealed.is_seal(name) && names(verdict, "seal"));
        if (!file_named) FAIL("the file is not named");
        const std::string& tensor = owner[bit / 8];
        if (!tensor.empty()) {
          ++in_tensors;
          if (!names(verdict, tensor)) FAIL("the tensor is not named");
          const Verdict other = verdict_of(sealed, "/hash.json", VerifyLevel::kQuick);
          ++against;
          if (!other.found || !names(other, tensor) || !other.files.contains(name))
            FAIL("not found against the report: " << other.text);
        }
        bytes[bit / 8] ^= std::byte{1} << bit % 8;
      }
      sealed.mend(name);
    }
  }
  fmt::print(
      "bit rot: {} single bits turned, one at a time, all of the files and seals; all found, {} in "
      "tensors with the tensor named, {} of them against a hash report; 0 accepted\n",
      flips, in_tensors, against);
  REQUIRE(flips > (kSanitized ? 700 : 30'000));
  REQUIRE(in_tensors == against);
}

TEST_CASE("bursts and a million random damages are found") {
  Sealed sealed(false);
  const std::string name = "__0_0.distcp";
  const auto directory = sealed.fs.open_directory("/ck");
  const Seal seal = *read_seal(*directory, "");
  const SealedFile& sums = *seal.find(name);
  const Bytes sound = sealed.files.at(name);
  Bytes bytes = sound;
  const ChangingFile file(bytes);
  const auto none = [](std::size_t) {};
  const auto is_found = [&] { return !check_sealed_blocks(file, sums, none).wrong.empty(); };
  REQUIRE_FALSE(is_found());
  std::mt19937_64 random(11);
  std::uint64_t bursts = 0, damages = 0, whole = 0;
  const std::uint64_t step = kSanitized ? 16 : 1;
  // Every burst begins and ends with a turned bit; what is between is random.
  for (std::uint64_t at = 0; at < bytes.size() * 8; at += step) {
    for (std::uint64_t length = 2; length <= 32 && at + length <= bytes.size() * 8; ++length) {
      const std::uint64_t middle = random();
      for (std::uint64_t i = 0; i < length; ++i) {
        const bool turned = i == 0 || i + 1 == length || (middle >> i & 1) != 0;
        if (turned) bytes[(at + i) / 8] ^= std::byte{1} << (at + i) % 8;
      }
      ++bursts;
      if (!is_found()) FAIL("a burst of " << length << " bits at bit " << at << ", seed 11");
      const auto first = static_cast<std::ptrdiff_t>(at / 8);
      const auto count =
          static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(6, bytes.size() - at / 8));
      std::copy_n(sound.begin() + first, count, bytes.begin() + first);
    }
  }
  REQUIRE(bytes == sound);
  const std::uint64_t promised = kSanitized ? 20'000 : 1'000'000;
  for (; damages < promised; ++damages) {
    const std::size_t length = random() % 64 + 1;
    const std::size_t at = random() % (bytes.size() - length);
    const std::size_t holes = random() % 4 + 1;  // every byte of a run, or one in a few
    bool changed = false;
    for (std::size_t i = 0; i < length; i += holes) {
      bytes[at + i] = static_cast<std::byte>(random());
      changed = changed || bytes[at + i] != sound[at + i];
    }
    if (!changed) bytes[at] ^= std::byte{0x80};
    if (!is_found()) FAIL("damage " << damages << " at byte " << at << ", seed 11");
    if (damages % 1000 == 0) {  // through the whole of verify as well
      sealed.set(name, bytes);
      const Verdict verdict = verdict_of(sealed);
      INFO(verdict.text);
      REQUIRE(verdict.found);
      REQUIRE(verdict.files.contains(name));
      ++whole;
    }
    std::copy_n(sound.begin() + static_cast<std::ptrdiff_t>(at), length,
                bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  fmt::print(
      "bit rot: {} bursts of 2 to 32 bits, {} random damages (seed 11), {} of them through all "
      "of verify; 0 accepted\n",
      bursts, damages, whole);
  REQUIRE(damages >= promised);
  REQUIRE(bursts >= (kSanitized ? 20'000 : 300'000));
  REQUIRE(whole * 1000 >= damages);
}

TEST_CASE("cut and extended and swapped and missing files are found without reading data") {
  int cuts = 0, longer = 0, swaps = 0, missing = 0;
  for (const bool single_file : {false, true}) {
    Sealed sealed(single_file);
    const auto expect = [&](const std::string& name, VerifyLevel level) {
      const Verdict verdict = verdict_of(sealed, "", level);
      INFO(name << "\n" << verdict.text);
      REQUIRE(verdict.found);
      REQUIRE((verdict.files.contains(name) || names(verdict, name)));
    };
    for (const std::string& name : sealed.names) {
      if (sealed.is_seal(name)) continue;
      const Bytes sound = sealed.files.at(name);
      for (std::size_t size = 0; size < sound.size(); size += kSanitized ? 7 : 1, ++cuts) {
        sealed.set(name, Bytes(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size)));
        expect(name, VerifyLevel::kQuick);
      }
      for (std::size_t more = 1; more <= 64; ++more, ++longer) {
        Bytes extended = sound;
        extended.resize(sound.size() + more, std::byte{'x'});
        sealed.set(name, extended);
        expect(name, VerifyLevel::kQuick);
      }
      sealed.fs.remove_file("/ck/" + name);
      try {
        expect(name, VerifyLevel::kQuick);
      } catch (const Error& error) {
        REQUIRE(error.code() == Code::kNotFound);
      }
      ++missing;
      sealed.mend(name);
    }
    for (const std::string& a : sealed.names) {
      for (const std::string& b : sealed.names) {
        if (a >= b || sealed.is_seal(a) || sealed.is_seal(b)) continue;
        sealed.set(a, sealed.files.at(b));
        sealed.set(b, sealed.files.at(a));
        expect(a, VerifyLevel::kQuick);
        ++swaps;
        sealed.mend(a);
        sealed.mend(b);
      }
    }
  }
  // Two files of one size: only their bytes tell.
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2_model_only");
  REQUIRE(convert(fs, convert_options(source, "/ck", 2)).published);
  std::map<std::size_t, std::vector<std::string>> by_size;
  for (const auto& [name, content] : fs.contents("/ck"))
    if (name.ends_with(".distcp")) by_size[content.size()].push_back(name);
  for (const auto& [size, same] : by_size) {
    if (same.size() < 2) continue;
    const Bytes a = fs.read_file("/ck/" + same[0]), b = fs.read_file("/ck/" + same[1]);
    fs.write_file("/ck/" + same[0], b);
    fs.write_file("/ck/" + same[1], a);
    VerifyOptions options;
    options.level = VerifyLevel::kFull;
    const VerifyReport report = verify_checkpoint(fs, "/ck", options);
    CHECK_FALSE(report.ok);
    ++swaps;
  }
  fmt::print("bit rot: {} cuts, {} extensions, {} swaps and {} missing files; all found\n", cuts,
             longer, swaps, missing);
  REQUIRE(cuts > (kSanitized ? 400 : 3000));
  REQUIRE(longer >= 64 * 3);
  REQUIRE(missing >= 3);
  REQUIRE(swaps >= 1);
}

TEST_CASE("sums that are asked for and absent are an error") {
  int asked = 0, refused = 0;
  const auto ask = [&](Sealed& sealed, const std::string& against, const char* code) {
    ++asked;
    VerifyOptions options;
    options.level = VerifyLevel::kFull;
    options.require_sums = against.empty();
    options.against = against;
    INFO(sealed.path << " against \"" << against << "\", expected " << code);
    try {
      const VerifyReport report = verify_checkpoint(sealed.fs, sealed.path, options);
      const bool told = std::ranges::any_of(report.findings, [&](const Note& note) {
        return note_code(note) == code && note.severity == Severity::kError;
      });
      CHECK_FALSE(report.ok);
      CHECK(told);
      refused += told && !report.ok;
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(std::string(code).empty());
      CHECK((error.code() == Code::kNotFound || error.code() == Code::kInvalidArgument ||
             error.code() == Code::kCorrupt));
      ++refused;
    }
  };
  for (const bool single_file : {false, true}) {
    Sealed sealed(single_file);
    const std::string seal_name =
        single_file ? "/ck/one.safetensors.tessera.json" : "/ck/tessera.manifest.json";
    const Bytes text = sealed.fs.read_file(seal_name);
    const Seal seal = decode_seal(text);
    VerifyOptions options;
    options.level = VerifyLevel::kFull;
    options.require_sums = true;
    CHECK(verify_checkpoint(sealed.fs, sealed.path, options).ok);
    options.against = "/of_it.json";
    sealed.fs.write_file("/of_it.json", text);
    CHECK(verify_checkpoint(sealed.fs, sealed.path, options).ok);
    // Reports that are absent, or say nothing of a tensor or a file.
    ask(sealed, "/absent.json", "");
    ask(sealed, "/ck", "");
    sealed.fs.write_file("/empty.json", as_bytes("{}"));
    ask(sealed, "/empty.json", "");
    for (const std::string left : {"[]", R"([{"name":"b","dtype":"float32","shape":[5]}])"}) {
      sealed.fs.write_file("/part.json",
                           as_bytes(R"({"schema":"tessera.hash/1","tensors":)" + left + "}"));
      ask(sealed, "/part.json", left == "[]" ? "CK048" : "");
    }
    Seal none = seal;
    none.files.clear();
    sealed.fs.write_file("/none.json", encode_seal(none));
    ask(sealed, "/none.json", "CK048");
    if (!single_file) {
      for (std::size_t gone = 0; gone < seal.files.size(); ++gone) {
        if (!seal.files[gone].path.ends_with(".distcp")) continue;
        Seal part = seal;
        part.files.erase(part.files.begin() + static_cast<std::ptrdiff_t>(gone));
        sealed.fs.write_file("/part.json", encode_seal(part));
        ask(sealed, "/part.json", "CK048");
      }
    }
    if (!single_file) continue;  // the archives of .distcp files have sums of their own
    // The seal is of another file, without sums, cut short, and gone.
    Seal other = seal;
    other.files[0].size_bytes += 1;
    sealed.fs.write_file(seal_name, encode_seal(other));
    ask(sealed, "", "CK045");
    std::string cut(as_text(text));
    cut.resize(cut.size() / 2);
    sealed.fs.write_file(seal_name, as_bytes(cut));
    ask(sealed, "", "CK045");
    sealed.fs.write_file(seal_name, encode_seal(none));
    ask(sealed, "", "CK045");
    sealed.fs.remove_file(seal_name);
    ask(sealed, "", "CK045");
  }
  fmt::print("absent sums: asked for in {} ways, refused in {}; 0 passed over\n", asked, refused);
  REQUIRE(asked >= 17);
  REQUIRE(refused == asked);
}

}  // namespace bit_rot_test
