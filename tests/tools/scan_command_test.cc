// ckpt-inspect scan, and what summary --globals and verify say of files beside a checkpoint.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/hostile_bytes.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"
#include "tests/support/safetensors_file.h"

namespace scan_command_test {

using namespace tessera;
using namespace tessera::testing;
using namespace std::string_literals;

namespace {

const std::string kEvil = "\x80\x02"s + "ctimeit\ntimeit\n(X\x01\x00\x00\x00xtR."s;

void put(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::string safetensors() {
  return safetensors_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
}

Value scanned(const CommandResult& result) {
  const Value document = parsed(result.out);
  const auto violations = schema_violations(published_schema("scan"), document);
  INFO((violations.empty() ? std::string() : violations[0]));
  CHECK(violations.empty());
  return document;
}

}  // namespace

TEST_CASE("scan exits 0, 1 and 4 by its verdict") {
  const TemporaryFolder t;
  put(t / "safe/model.safetensors", safetensors());
  put(t / "unknown/model.py", "import os\n");
  put(t / "dangerous/pytorch_model.bin", torch_zip_of(kEvil));
  put(t / "dangerous/model.safetensors", safetensors());
  for (const auto& [name, exit] :
       std::vector<std::pair<std::string, int>>{{"safe", 0}, {"unknown", 1}, {"dangerous", 4}}) {
    INFO(name);
    const CommandResult json = inspect({"scan", t / name, "--format", "json"});
    CHECK(json.exit == exit);
    CHECK(scanned(json).find("verdict")->as_string() == name);
    const CommandResult human = inspect({"scan", t / name});
    CHECK(human.exit == exit);
    CHECK(human.err.empty() == (exit != 4));
  }
  const CommandResult human = inspect({"scan", t / "dangerous"});
  CHECK(human.out.find("calls timeit.timeit") != std::string::npos);
  CHECK(human.out.find("model.safetensors instead") != std::string::npos);
  CHECK(human.out.find("DANGEROUS  loading it would run code") != std::string::npos);
  const CommandResult both = inspect({"scan", t / "safe", t / "unknown", "--format", "ndjson"});
  CHECK(both.exit == 1);
  CHECK(std::count(both.out.begin(), both.out.end(), '\n') == 4);
  CHECK(inspect({"scan", t / "absent"}).exit == 3);
  CHECK(inspect({"scan"}).exit == 2);
  CHECK(inspect({"scan", t / "safe", "--include", "x"}).exit == 2);
}

TEST_CASE("summary --globals judges every file of the folder") {
  const TemporaryFolder t;
  put(t / "model/model.safetensors", safetensors());
  put(t / "model/pytorch_model.bin", torch_zip_of(kEvil));
  const CommandResult human = inspect({"summary", "--globals", t / "model"});
  CHECK(human.exit == 4);
  CHECK(human.out.find("pytorch_model.bin") != std::string::npos);
  CHECK(human.out.find("timeit.timeit") != std::string::npos);
  const CommandResult json = inspect({"summary", "--globals", t / "model", "--format", "json"});
  CHECK(json.exit == 4);
  const Value document = parsed(json.out);
  CHECK(schema_violations(published_schema("summary"), document).empty());
  const Value* scan = document.find("scan");
  REQUIRE(scan);
  CHECK(schema_violations(published_schema("scan"), *scan).empty());
  CHECK(scan->find("verdict")->as_string() == "dangerous");
  CHECK(inspect({"summary", t / "model"}).exit == 0);
  CHECK(inspect({"scan", t / "model"}).err.find("ckpt-inspect: unsafe: ") == 0);
  // What is no checkpoint is judged all the same.
  put(t / "lone.pkl", kEvil);
  CHECK(inspect({"summary", "--globals", t / "lone.pkl"}).exit == 4);
}

TEST_CASE("verify counts what it did not look into") {
  const TemporaryFolder t;
  put(t / "model/model.safetensors", safetensors());
  CHECK(parsed(inspect({"verify", t / "model", "--format", "json"}).out)
            .find("other_files")
            ->as_int() == 0);
  put(t / "model/pytorch_model.bin", torch_zip_of(kEvil));
  put(t / "model/more/config.json", "{}");
  const CommandResult json = inspect({"verify", t / "model", "--format", "json"});
  const Value document = parsed(json.out);
  CHECK(schema_violations(published_schema("verify"), document).empty());
  CHECK(document.find("other_files")->as_int() == 2);
  const CommandResult human = inspect({"verify", t / "model"});
  CHECK(human.exit == 0);
  CHECK(human.out.find("2 files of the folder were not looked into") != std::string::npos);
  // A file was asked for, not its folder.
  CHECK(parsed(inspect({"verify", t / "model/model.safetensors", "--format", "json"}).out)
            .find("other_files")
            ->as_int() == 0);
}

}  // namespace scan_command_test
