// scan: every file of a folder, whatever holds what.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/scan.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "lib/ops/scan/content.h"
#include "tests/support/convert_case.h"
#include "tests/support/hostile_bytes.h"
#include "tests/support/inspect_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"
#include "tests/support/safetensors_file.h"

namespace scan_test {

using namespace tessera;
using namespace tessera::testing;
using namespace std::string_literals;

namespace {

const std::string kEvil = "\x80\x02"s + "cposix\nsystem\n(X\x01\x00\x00\x00xtR."s;
const std::string kObject = "\x80\x02"s + "cmylib\nThing\n)\x81."s;
const std::string kPlain = "\x80\x02}."s;

std::string safetensors() {
  return safetensors_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
}

void put(MemoryFileSystem& fs, const std::string& path, const std::string& content) {
  fs.write_file(path, as_bytes(content));
}

ScanReport scan_of(FileSystem& fs, const std::string& path) {
  const std::vector<std::string> paths{path};
  return scan_files(fs, paths);
}

ScannedFile scan_bytes(const std::string& name, const std::string& content) {
  MemoryFileSystem fs;
  put(fs, "/m/" + name, content);
  const ScanReport report = scan_of(fs, "/m");
  REQUIRE(report.files.size() == 1);
  return report.files[0];
}

std::string zip(std::vector<std::pair<std::string, std::string>> members) {
  std::vector<ZipRecord> records;
  for (auto& [name, content] : members) records.push_back({name, content});
  return zip_of(records);
}

std::string npy(const std::string& type, const std::string& data) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (1,), }\n";
  return "\x93NUMPY\x01"s + '\0' + static_cast<char>(header.size()) + '\0' + header + data;
}

std::string tar(const std::string& name, const std::string& content, char type = '0',
                const std::string& target = "") {
  std::string header(512, '\0');
  const auto field = [&](std::size_t at, const std::string& text) {
    std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(at));
  };
  char size[12];
  std::snprintf(size, sizeof size, "%011zo", content.size());
  field(0, name), field(124, size), field(156, std::string(1, type)), field(157, target);
  field(257, "ustar"), field(148, std::string(8, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  field(148, std::string(text, 7));
  std::string out = header + content;
  out.resize((out.size() + 511) / 512 * 512, '\0');
  return out + std::string(1024, '\0');
}

}  // namespace

TEST_CASE("a call is found wherever it hides") {
  const std::string torch = torch_zip_of(kEvil);
  const std::string end("PK\x05\x06", 4);
  std::string other_name = torch;
  other_name.replace(other_name.rfind("data.pkl"), 8, "data.txt");
  for (const auto& [name, content] : std::vector<std::pair<std::string, std::string>>{
           {"model.pt", torch},
           {"model.pkl", kEvil},
           {"no_name", kEvil},
           {"posing.safetensors", kEvil},
           {"posing.txt", kEvil},
           {"legacy.pt", kPlain + kPlain + kPlain + kEvil},
           {"broken.pkl", kEvil.substr(0, kEvil.size() - 1) + "\xff"},
           {"array.npy", npy("|O", kEvil)},
           {"arrays.npz", zip({{"a.npy", npy("<f4", "1234")}, {"b.npy", npy("|O", kEvil)}})},
           {"wrong_extension.zip", zip({{"readme.md", kEvil}})},
           {"inner.zip", zip({{"inner.zip", zip({{"x", kEvil}})}})},
           {"second.pt", zip({{"a/data.pkl", kPlain}, {"a/extra.pkl", kEvil}})},
           {"renamed.pt", other_name},
           {"no_directory.pt", torch.substr(0, torch.rfind(end))},
           {"prefixed.zip", std::string(100, 'x') + torch},
           {"packed.zip", zip_of({{.name = "x.pkl",
                          .content = deflated(kEvil),
                          .method = 8,
                          .declared_size = static_cast<std::uint32_t>(kEvil.size())}})},
           {"false_sum.pt", zip_of({{.name = "a/data.pkl", .content = kEvil, .declared_crc = 7}})},
           {"odd_method.pt", zip_of({{.name = "a/data.pkl", .content = kEvil, .method = 99}})},
           {"model.nemo", tar("weights.ckpt", torch)},
           {"__0_0.distcp", torch_zip_of(kPlain) + torch + torch_zip_of(kPlain)},
           {"bare.distcp", kPlain + kEvil},
           {".metadata", kEvil},
           {"hparams.yaml", "a: !!python/object/apply:os.system ['x']\n"},
           {"saved_model.pb", "\x0a\x10\x12\x08ReadFile\x22"},
           {"model.keras", zip({{"config.json", R"({"class_name": "Lambda", "config": {}})"},
                                {"model.weights.h5", "x"}})}}) {
    INFO(name);
    const ScannedFile file = scan_bytes(name, content);
    CHECK(file.safety == Safety::kDangerous);
    REQUIRE_FALSE(file.findings.empty());
    CHECK(file.findings[0].safety == Safety::kDangerous);
    CHECK_FALSE(file.kind.empty());
  }
  const ScannedFile file = scan_bytes("model.pt", torch);
  CHECK(file.findings[0].message == "calls posix.system");
  CHECK(file.findings[0].name == "posix.system");
  CHECK(file.findings[0].role == "called");
  CHECK(file.findings[0].inside.ends_with("data.pkl"));
}

TEST_CASE("what is plain data, what is unknown, and what is not judged") {
  const auto verdict = [](const std::string& name, const std::string& content) {
    return scan_bytes(name, content).safety;
  };
  CHECK(verdict("a.pt", torch_zip_of(kPlain)) == Safety::kSafe);
  CHECK(verdict("a.pkl", kPlain) == Safety::kSafe);
  CHECK(verdict("a.safetensors", safetensors()) == Safety::kSafe);
  CHECK(verdict("a.npy", npy("<f4", "1234")) == Safety::kSafe);
  CHECK(verdict("config.json", "{\"auto\": [1]}") == Safety::kSafe);
  CHECK(verdict("conf.yaml", "a: 1\n") == Safety::kSafe);

  CHECK(verdict("a.pt", torch_zip_of(kObject)) == Safety::kUnknown);
  CHECK(verdict("modeling.py", "import os\n") == Safety::kUnknown);
  CHECK(verdict("convert.sh", "#!/bin/sh\n") == Safety::kUnknown);
  CHECK(verdict("a.safetensors", "\x08\0\0\0\0\0\0\0{\"a\":}}"s) == Safety::kUnknown);
  CHECK(verdict("a.pt", torch_zip_of(kPlain).substr(0, 60)) == Safety::kUnknown);
  CHECK(verdict("a.7z", "7z\xbc\xaf\x27\x1c....") == Safety::kUnknown);
  CHECK(verdict("a.tar", tar("../../x", "y")) == Safety::kUnknown);
  CHECK(verdict("a.tar", tar("x", "", '2', "/etc/passwd")) == Safety::kUnknown);
  CHECK(verdict("script.pt", zip({{"a/constants.pkl", "\x80\x02)."}, {"a/data.pkl", kPlain}})) ==
        Safety::kUnknown);

  CHECK_FALSE(verdict("README.md", "# Model\n"));
  CHECK_FALSE(verdict("tokenizer.bin", "abcdef"));
  CHECK_FALSE(verdict("empty", ""));
  // Bytes of a tensor that begin as a pickle does are no pickle.
  CHECK(verdict("a.pt", zip({{"a/data.pkl", kPlain}, {"a/data/0", "\x80\x02\x00\x01\x02"s}})) ==
        Safety::kSafe);
}

TEST_CASE("one verdict for all, and none where nothing was judged") {
  MemoryFileSystem fs;
  put(fs, "/m/README.md", "text");
  ScanReport report = scan_of(fs, "/m");
  CHECK(report.safety == Safety::kUnknown);
  CHECK(report.not_judged == 1);
  put(fs, "/m/a/b/model.safetensors", safetensors());
  CHECK(scan_of(fs, "/m").safety == Safety::kSafe);
  put(fs, "/m/a/state.pt", torch_zip_of(kObject));
  CHECK(scan_of(fs, "/m").safety == Safety::kUnknown);
  put(fs, "/m/.hidden/x.bin", kEvil);
  report = scan_of(fs, "/m");
  CHECK(report.safety == Safety::kDangerous);
  CHECK((report.safe == 1 && report.unknown == 1 && report.dangerous == 1));
  CHECK(std::ranges::is_sorted(report.files, {}, &ScannedFile::path));
  const std::vector<std::string> several{"/m/a/b/model.safetensors", "/m/a/state.pt"};
  CHECK(scan_files(fs, several).files.size() == 2);
  CHECK_THROWS_AS(scan_of(fs, "/absent"), Error);
}

TEST_CASE("a safe twin is what to use instead") {
  MemoryFileSystem fs;
  put(fs, "/m/pytorch_model.bin", torch_zip_of(kEvil));
  put(fs, "/m/model.safetensors", safetensors());
  put(fs, "/m/adapter_model.bin", torch_zip_of(kObject));
  put(fs, "/m/adapter_model.safetensors", kEvil);  // which is none
  const ScanReport report = scan_of(fs, "/m");
  const auto instead = [&](const std::string& path) {
    return std::ranges::find(report.files, path, &ScannedFile::path)->use_instead;
  };
  CHECK(instead("/m/pytorch_model.bin") == "/m/model.safetensors");
  CHECK(instead("/m/adapter_model.bin").empty());
}

TEST_CASE("links that leave the folder are named and looked behind") {
  MemoryFileSystem fs;
  put(fs, "/m/inside.pt", torch_zip_of(kPlain));
  put(fs, "/elsewhere/evil.bin", kEvil);
  put(fs, "/elsewhere/good.safetensors", safetensors());
  fs.add_symlink("/m/link_inside.pt", "inside.pt");
  CHECK(scan_of(fs, "/m").links.empty());
  CHECK(scan_of(fs, "/m").safety == Safety::kSafe);
  fs.add_symlink("/m/good", "../elsewhere/good.safetensors");
  ScanReport report = scan_of(fs, "/m");
  REQUIRE(report.links.size() == 1);
  CHECK(report.links[0].leaves);
  CHECK(report.links[0].target == "/elsewhere/good.safetensors");
  CHECK(report.safety == Safety::kUnknown);
  fs.add_symlink("/m/evil.bin", "../elsewhere/evil.bin");
  CHECK(scan_of(fs, "/m").safety == Safety::kDangerous);
  fs.remove_file("/m/evil.bin");
  fs.add_symlink("/m/folder", "../elsewhere");
  fs.add_symlink("/m/nothing", "../nowhere");
  report = scan_of(fs, "/m");
  CHECK(report.safety == Safety::kUnknown);
  CHECK(report.links.size() == 3);
}

TEST_CASE("the cache of the hub is made of links to blobs") {
  MemoryFileSystem fs;
  put(fs, "/hub/models--a/blobs/1234", safetensors());
  fs.make_directories("/hub/models--a/snapshots/abc");
  fs.add_symlink("/hub/models--a/snapshots/abc/model.safetensors", "../../blobs/1234");
  const ScanReport report = scan_of(fs, "/hub/models--a/snapshots/abc");
  CHECK(report.safety == Safety::kSafe);
  CHECK(report.safe == 1);
  CHECK(report.links.size() == 1);
}

TEST_CASE("items of a sharded checkpoint are found by its metadata") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  CHECK(scan_of(fs, source).safety == Safety::kSafe);
  // Between the items.
  const Bytes old = fs.read_file(source + "/__0_0.distcp");
  put(fs, source + "/__0_0.distcp", std::string(as_text(old)) + torch_zip_of(kEvil));
  CHECK(scan_of(fs, source).safety == Safety::kDangerous);
  // Without metadata they are found by their look.
  fs.remove_file(source + "/.metadata");
  CHECK(scan_of(fs, source).safety == Safety::kDangerous);
}

TEST_CASE("Keras names what it imports") {
  const auto worst = [](const std::string& json) {
    Safety out = Safety::kSafe;
    for (const auto& [safety, message] : judge_keras_config(json)) out = std::max(out, safety);
    return out;
  };
  CHECK(worst(R"({"class_name": "Dense", "module": "keras.layers", "config": {}})") ==
        Safety::kSafe);
  CHECK(worst(R"({"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda",
      "config": {"name": "l"}}]}})") == Safety::kDangerous);
  CHECK(worst(R"({"class_name": "__lambda__", "config": {"value": "x"}})") == Safety::kDangerous);
  CHECK(worst(R"({"class_name": "system", "module": "os", "config": {}})") == Safety::kDangerous);
  CHECK(worst(R"({"class_name": "get_file", "module": "keras.utils"})") == Safety::kDangerous);
  CHECK(worst(R"({"class_name": "function", "module": "os", "config": "system"})") ==
        Safety::kDangerous);
  CHECK(worst(R"({"class_name": "Mine", "module": "my_layers"})") == Safety::kUnknown);
  // What is refused here, Python's parser may take: the last of equal keys.
  CHECK(worst(R"({"class_name": "Dense", "class_name": "Lambda"})") == Safety::kDangerous);
}

TEST_CASE("a Lambda layer in an HDF5 file is found") {
  const ScannedFile file = scan_of(disk(), fixture("scanners/lambda.h5")).files.at(0);
  CHECK(file.safety == Safety::kDangerous);
  CHECK(file.kind == "HDF5");
  CHECK(file.findings.at(0).message.find("lambda") != std::string::npos);
}

// Recorded: tests/ops/data/scanners/make_verdicts.py.
TEST_CASE("what picklescan or modelscan flags is dangerous") {
  std::ifstream table(fixture("scanners/verdicts.tsv"));
  std::size_t flagged = 0;
  for (std::string line; std::getline(table, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    std::string module, name;
    int picklescan = 0, modelscan = 0;
    REQUIRE(fields >> module >> name >> picklescan >> modelscan);
    // picklescan flags the whole module; this class is data, and in many checkpoints.
    if ((!picklescan && !modelscan) || module + "." + name == "uuid.UUID") continue;
    ++flagged;
    INFO(line);
    const std::string global = module + "\n" + name + "\n";
    const auto text = [](const std::string& t) {
      return "\x8c"s + static_cast<char>(t.size()) + t;
    };
    for (const std::string& pickle :
         {"c" + global + "(S'x'\ntR.", "(S'x'\ni" + global + ".",
          "\x80\x04"s + text(module) + text(name) + "\x93" + text("x") + "\x85R."})
      CHECK(scan_pickle_bytes(as_bytes(pickle)).safety() == Safety::kDangerous);
  }
  CHECK(flagged == 99);
}

TEST_CASE("no sample of a real framework is called dangerous", "[wide]") {
  const ScanReport report =
      scan_of(disk(), std::string(TESSERA_SOURCE_DIR) + "/sample_checkpoints");
  CHECK(report.files.size() > 900);
  for (const ScannedFile& file : report.files) {
    INFO(file.path << (file.findings.empty() ? "" : ": " + file.findings[0].message));
    const bool hostile = file.path.find("/hostile/") != std::string::npos;
    if (!hostile) CHECK(file.safety != Safety::kDangerous);
    if (!hostile && !file.findings.empty())
      CHECK(file.findings[0].message.find("broken") == std::string::npos);
  }
  CHECK(report.dangerous >= 4);
}

namespace {

Value called(const std::string& module, const std::string& name) {
  OpaqueObject object;
  object.how = OpaqueObject::How::kReduce;
  object.module = module;
  object.name = name;
  object.arguments = Value::list({text("x")}, Value::Kind::kTuple);
  return Value::opaque(std::move(object));
}

void put_state(MemoryFileSystem& fs, Value extra) {
  RankArchive archive;
  const Value root = dict({{"w", archive.tensor(Shape({2}), {1, 2})}, {"extra", std::move(extra)}});
  const Bytes bytes = archive.render(root);
  fs.write_file("/source.pt", bytes);
}

}  // namespace

TEST_CASE("no result that a loader unpickles receives a dangerous call") {
  for (const FormatDriver* driver : all_formats()) {
    if (!driver->capabilities().writes || !driver->capabilities().keeps_opaque) continue;
    INFO(driver->id());
    MemoryFileSystem fs;
    // Deep inside of an object, too.
    for (const Value& value : {called("timeit", "timeit"), Value::list({called("pty", "spawn")}),
                               argument_namespace({{"a", called("some_library", "helper")}})}) {
      put_state(fs, value);
      for (const KeepPolicy policy : {KeepPolicy::kDefault, KeepPolicy::kKeep}) {
        ConvertOptions options =
            convert_options("/source.pt", "/out", {}, std::string(driver->id()));
        options.target.opaque = policy;
        const Status status = status_of(fs, options);
        CHECK(status.code == Code::kCorrupt);
        CHECK(status.message.find("unsafe") != std::string::npos);
        CHECK(status.hint.find("--opaque drop") != std::string::npos);
        CHECK_FALSE(fs.stat("/out"));
      }
    }
  }
}

TEST_CASE("a dangerous call is left out by --opaque drop") {
  for (const std::string to : {"torch-dcp", "torch-save", "torch-rank-files"}) {
    INFO(to);
    MemoryFileSystem fs;
    put_state(fs, called("timeit", "timeit"));
    ConvertOptions options = convert_options("/source.pt", "/out", {}, to);
    options.target.opaque = KeepPolicy::kDrop;
    const ConvertReport report = convert(fs, options);
    CHECK(report.dropped == std::vector<std::string>{"extra"});
    CHECK(scan_of(fs, "/out").safety == Safety::kSafe);
  }
}

TEST_CASE("objects of unknown classes pass with a warning for every target") {
  for (const std::string to : {"torch-dcp", "torch-save", "torch-rank-files"}) {
    INFO(to);
    MemoryFileSystem fs;
    put_state(fs, argument_namespace({{"lr", number(1)}}));
    const ConvertReport report = convert(fs, convert_options("/source.pt", "/out", {}, to));
    CHECK(std::ranges::count(report.notes, "CK035", note_code<Note>) == 1);
    CHECK(scan_of(fs, "/out").safety == Safety::kUnknown);
  }
}

TEST_CASE(
    "a raw item of a sharded checkpoint is judged as the pickle that its loader takes it for") {
  MemoryFileSystem fs;
  put_state(fs, Value::bytes(kEvil, Value::Kind::kBytesIo));
  const Status status = status_of(fs, convert_options("/source.pt", "/out", {}, "torch-dcp"));
  INFO(status.message);
  CHECK(status.code == Code::kCorrupt);
}

}  // namespace scan_test
