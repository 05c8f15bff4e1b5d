// Damage to a sealed result in each format that is written here, as a folder and as one file:
// turned bits, bursts, cut, extended, swapped and missing files. verify --full finds each and names
// the file and, where a bit turned in a tensor's bytes, the tensor; so does a hash report.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/verify.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "lib/ops/seal/check.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sanitized.h"
#include "tests/support/soak.h"
#include "tests/support/written_formats.h"

namespace bit_rot_formats_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

struct WrittenForm {
  std::string format;
  std::string file;  // "" for a folder
};

std::vector<WrittenForm> written_forms() {
  std::vector<WrittenForm> forms = {{"safetensors", "one.safetensors"}, {"torch-save", "one.pt"}};
  if (reads_hdf5()) forms.push_back({"hdf5", "one.h5"});
  for (const FormatDriver* driver : written_formats())
    forms.push_back({std::string(driver->id()), ""});
  return forms;
}

struct Answer {
  bool found = false;
  std::string text;  // of every error
};

/// A result of ours in /ck, with its seal, and a hash report of it at /hash.json.
class SealedForm {
 public:
  explicit SealedForm(const WrittenForm& form)
      : form_(form), path_(form.file.empty() ? "/ck" : "/ck/" + form.file) {
    if (!form.file.empty()) fs_.make_directories("/ck");
    ConvertOptions options =
        convert_options(load_sample(fs_, "dcp/fsdp2_w2"), path_, std::nullopt, form.format);
    // Megatron's optimizer is of all parameters or none.
    if (form.format != "megatron-torch")
      options.selection.include = {"*layers.0.norm*", "*head.bias*"};
    if (form.format.starts_with("megatron"))
      options.target.mesh = Mesh({{"dp", 2}});
    else if (find_format(form.format)->capabilities().many_ranks)
      options.target.world_size = 2;
    REQUIRE(convert(fs_, options).published);
    for (const auto& [name, text] : fs_.contents("/ck")) {
      const ByteView bytes = as_bytes(text);
      if (!name.ends_with('/')) files_.emplace(name, Bytes(bytes.begin(), bytes.end()));
    }
    directory_ = fs_.open_directory("/ck");
    seal_ = read_seal(*directory_, form.file).value();
  }

  const std::map<std::string, Bytes>& files() const { return files_; }
  bool is_seal(const std::string& name) const {
    return name == "tessera.manifest.json" || name.ends_with(".tessera.json");
  }
  void set(const std::string& name, const Bytes& bytes) { fs_.write_file("/ck/" + name, bytes); }
  void mend(const std::string& name) { set(name, files_.at(name)); }
  void remove(const std::string& name) { fs_.remove_file("/ck/" + name); }

  /// Do the sums that the seal has of a file differ? That alone, without all of verify.
  bool sums_differ(const std::string& name) const {
    const SealedFile& sums = form_.file.empty() ? *seal_.find(name) : seal_.files.at(0);
    return !check_sealed_blocks(*directory_->open(name), sums, [](std::size_t) {}).wrong.empty();
  }

  Answer verify(VerifyLevel level = VerifyLevel::kFull, const std::string& against = "") {
    VerifyOptions options;
    options.level = level;
    options.against = against;
    options.transfer.threads = 1;
    Answer answer;
    try {
      const VerifyReport report = verify_checkpoint(fs_, path_, options);
      answer.found = !report.ok;
      for (const Note& note : report.findings)
        if (note.severity == Severity::kError)
          answer.text += fmt::format("{} [{}] {}: {}\n", note_code(note), note.file, note.tensor,
                                     note.message);
    } catch (const Error& error) {  // nothing can be opened any more
      INFO(error.what());
      REQUIRE(error.code() == Code::kCorrupt);
      answer = {true, error.what()};
    }
    return answer;
  }

  /// Fails unless verify finds damage and names `name`.
  Answer expect_found(const std::string& name, VerifyLevel level = VerifyLevel::kFull) {
    Answer answer = verify(level);
    INFO(form_.format << " " << form_.file << ": " << name << "\n" << answer.text);
    if (!answer.found) FAIL("not found");
    if (answer.text.find(is_seal(name) ? "tessera" : name) == std::string::npos)
      FAIL("the file is not named");
    return answer;
  }

  void write_report() {
    OpenedCheckpoint opened = open();
    fs_.write_file("/hash.json", as_bytes(hash_report(hash_checkpoint(opened).tensors)));
  }
  /// Tensors with a second copy of their bytes: what a hash reads may be that one.
  std::set<std::string> copied() {
    OpenedCheckpoint opened = open();
    std::set<std::string> names;
    for (const StoredTensor& tensor : opened.manifest.tensors) {
      std::uint64_t bytes = 0;
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        bytes += opened.manifest.source(tensor, c).length;
      if (bytes > static_cast<std::uint64_t>(tensor.spec.size_bytes())) names.insert(tensor.name);
    }
    return names;
  }
  /// Of which tensor each byte of `name` is, the first where it is of several; "" where it is
  /// none's.
  std::vector<std::string> owners(const std::string& name) {
    OpenedCheckpoint opened = open();
    std::vector<std::string> owner(files_.at(name).size());
    for (const StoredTensor& tensor : opened.manifest.tensors) {
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
        const Source& source = opened.manifest.source(tensor, c);
        if (source.kind != Source::Kind::kExtent || source.side != 0) continue;
        if (opened.manifest.files[source.file].path != name) continue;
        for (std::uint64_t i = source.offset; i < source.offset + source.length; ++i)
          if (owner[i].empty()) owner[i] = tensor.name;
      }
    }
    return owner;
  }

 private:
  OpenedCheckpoint open() {
    OpenedCheckpoint opened = open_checkpoint(fs_, path_);
    opened.locate_all({});
    return opened;
  }

  MemoryFileSystem fs_;
  WrittenForm form_;
  std::string path_;
  std::map<std::string, Bytes> files_;
  std::unique_ptr<Directory> directory_;
  Seal seal_;
};

/// Verifies that are worth their time: each of HDF5 starts a process.
std::size_t places(const WrittenForm& form) {
  const std::size_t most = form.format == "hdf5" ? 60 : 1000;
  return most / (kSanitized ? 20 : repeated(1, 5));
}

}  // namespace

TEST_CASE("a turned bit in a sealed result of any format is found, its file and tensor named",
          "[wide]") {
  std::uint64_t flips = 0, verified = 0, in_tensors = 0, against = 0, forms = 0;
  const std::size_t every = kSanitized ? 61 : repeated(1, 13);
  const std::uint64_t least = kSanitized ? 1 : repeated(20, 4);  // times what sanitizers see
  std::mt19937_64 random(41);
  for (const WrittenForm& form : written_forms()) {
    SealedForm sealed(form);
    REQUIRE(sealed.verify().text == "");
    sealed.write_report();
    const std::set<std::string> copied = sealed.copied();
    const std::uint64_t before = in_tensors;
    for (const auto& [name, sound] : sealed.files()) {
      INFO(form.format << " " << name);
      const std::vector<std::string> owner = sealed.owners(name);
      Bytes bytes = sound;
      const auto turn = [&](std::size_t bit) { bytes[bit / 8] ^= std::byte{1} << bit % 8; };
      for (std::size_t bit = 0; !sealed.is_seal(name) && bit < 8 * sound.size();
           bit += every, ++flips) {
        turn(bit);
        sealed.set(name, bytes);
        if (!sealed.sums_differ(name)) FAIL("bit " << bit);
        turn(bit);
      }
      const std::size_t step = std::max<std::size_t>(1, sound.size() / places(form));
      for (std::size_t at = 0; at < sound.size(); at += step, ++verified) {
        const std::size_t bit = 8 * at + random() % 8;
        turn(bit);
        sealed.set(name, bytes);
        turn(bit);
        const Answer answer = sealed.expect_found(name);
        INFO("byte " << at << "\n" << answer.text);
        if (owner[at].empty()) continue;
        ++in_tensors;
        if (answer.text.find(owner[at]) == std::string::npos) FAIL("the tensor is not named");
        if (copied.contains(owner[at])) continue;
        ++against;
        const Answer other = sealed.verify(VerifyLevel::kQuick, "/hash.json");
        // A record of flat parameters is refused for the first of them.
        const bool named = other.text.find(owner[at]) != std::string::npos ||
                           other.text.find(name) != std::string::npos;
        if (!other.found || !named) FAIL("not found against the report: " << other.text);
      }
      sealed.mend(name);
    }
    CHECK(in_tensors > before);
    ++forms;
  }
  fmt::print(
      "bit rot: {} forms of every format that is written: each of {} bits turned differs from its "
      "sum; {} of them through all of verify, seals included, all found and named, {} in tensors, "
      "named, {} of them against a hash report as well; 0 accepted\n",
      forms, flips, verified, in_tensors, against);
  REQUIRE(forms >= 11);
  REQUIRE(flips > (kSanitized ? 10'000 : repeated(900'000, 60'000)));
  REQUIRE(verified > 1'500 * least);
  REQUIRE(in_tensors > 50 * least);
  REQUIRE(against > 40 * least);
}

TEST_CASE("a burst of damage in a sealed result of any format is found and its file named",
          "[wide]") {
  std::uint64_t bursts = 0;
  std::mt19937_64 random(43);
  for (const WrittenForm& form : written_forms()) {
    SealedForm sealed(form);
    for (const auto& [name, sound] : sealed.files()) {
      for (std::size_t i = 0; i < std::max<std::size_t>(2, places(form) / 10); ++i, ++bursts) {
        Bytes bytes = sound;
        const std::size_t length = std::min<std::size_t>(2 + random() % 31, 8 * sound.size());
        const std::size_t first = random() % (8 * sound.size() - length + 1);
        for (std::size_t bit = first; bit < first + length; ++bit)
          if (bit == first || bit + 1 == first + length || random() % 2 == 0)
            bytes[bit / 8] ^= std::byte{1} << bit % 8;
        sealed.set(name, bytes);
        sealed.expect_found(name);
      }
      sealed.mend(name);
    }
  }
  fmt::print("bit rot: {} bursts of 2 to 32 bits (seed 43); all found and named\n", bursts);
  REQUIRE(bursts > (kSanitized ? 200 : repeated(4'000, 800)));
}

TEST_CASE("a cut, longer, swapped or missing file of a sealed result of any format is found") {
  int sizes = 0, swaps = 0, missing = 0;
  for (const WrittenForm& form : written_forms()) {
    SealedForm sealed(form);
    for (const auto& [name, sound] : sealed.files()) {
      const std::size_t whole = sound.size();
      for (const std::size_t size :
           {std::size_t{0}, std::size_t{1}, whole / 2, whole - 1, whole + 1, whole + 5000}) {
        Bytes bytes = sound;
        bytes.resize(size);
        ++sizes;
        if (kSanitized && sizes % 8 != 0) continue;  // some of them will do
        sealed.set(name, bytes);
        sealed.expect_found(name);
        sealed.expect_found(name, VerifyLevel::kQuick);
      }
      sealed.mend(name);
      if (!form.file.empty() || sealed.is_seal(name)) continue;  // the path that is asked for
      sealed.remove(name);
      sealed.expect_found(name);
      sealed.expect_found(name, VerifyLevel::kQuick);
      sealed.mend(name);
      ++missing;
    }
    for (const auto& [a, in_a] : sealed.files()) {
      for (const auto& [b, in_b] : sealed.files()) {
        if (a >= b || in_a == in_b || sealed.is_seal(a) || sealed.is_seal(b)) continue;
        ++swaps;
        if (kSanitized && swaps % 8 != 0) continue;
        sealed.set(a, in_b);
        sealed.set(b, in_a);
        const Answer answer = sealed.expect_found(a);
        CHECK_THAT(answer.text, Catch::Contains(b));
        sealed.mend(a);
        sealed.mend(b);
      }
    }
    REQUIRE(sealed.verify().text == "");
  }
  fmt::print("bit rot: {} sizes of files, {} swaps, {} missing files; all found and named\n", sizes,
             swaps, missing);
  REQUIRE(sizes >= 200);
  REQUIRE(swaps >= 100);
  REQUIRE(missing >= 25);
}

}  // namespace bit_rot_formats_test
