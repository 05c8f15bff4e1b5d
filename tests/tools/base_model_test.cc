// What becomes of configuration and tokenizer: --base-model, --copy-assets, and the proof that --to hf makes.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/run_command.h"

namespace base_model_test {

using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

void put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// As the hub's client leaves a model: links to blobs, and a reference that names the commit.
void make_cache(const std::string& cache) {
  const std::string model = cache + "/models--me--tiny", snapshot = model + "/snapshots/abc123";
  put(model + "/refs/main", "abc123");
  put(model + "/blobs/1", R"({"model_type": "llama", "torch_dtype": "float32"})");
  put(model + "/blobs/2", R"({"version": "1.0"})");
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_symlink("../../blobs/1", snapshot + "/config.json");
  std::filesystem::create_symlink("../../blobs/2", snapshot + "/tokenizer.json");
}

CommandOptions with_cache(const std::string& variable, const std::string& value) {
  CommandOptions options;
  options.environment[variable] = value;
  return options;
}

const std::string kSource = "dcp/fsdp2_w4";

}  // namespace

TEST_CASE(
    "flag --base-model takes a model's files from the hub's cache, and its type follows --dtype") {
  const TemporaryFolder t;
  make_cache(t / "home/hub");
  const std::pair<const char*, std::string> places[] = {{"HF_HUB_CACHE", t / "home/hub"},
                                                        {"HF_HOME", t / "home"}};
  for (const auto& [variable, value] : places) {
    for (const char* name : {"me/tiny", "me/tiny@main", "me/tiny@abc123"}) {
      const CommandResult result = convert({case_path(kSource), t / "out", "--to", "hf", "--dtype",
                                            "bf16", "--base-model", name, "--force"},
                                           with_cache(variable, value));
      INFO(name << ": " << result.err << result.out);
      REQUIRE(result.exit == 0);
      CHECK(text_of(t / "out/config.json") ==
            R"({"model_type": "llama", "torch_dtype": "bfloat16"})");
      CHECK(std::filesystem::exists(t / "out/tokenizer.json"));
    }
  }
  for (const char* folder : {"models--me--tiny/snapshots/abc123", "models--me--tiny"}) {
    INFO(folder);
    CHECK(convert({case_path(kSource), t / "direct", "--to", "hf", "--force", "--base-model",
                   t / "home/hub/" + folder})
              .exit == 0);
    CHECK(std::filesystem::exists(t / "direct/config.json"));
    std::filesystem::remove_all(t / "direct");
  }
}

TEST_CASE("a model's folder in the hub's cache is its only revision where none is main") {
  const TemporaryFolder t;
  make_cache(t / "hub");
  const std::string model = t / "hub/models--me--tiny";
  std::filesystem::remove_all(model + "/refs");
  const std::pair<std::string, std::string> flags[] = {{"--base-model", model},
                                                       {"--copy-assets=" + model, ""}};
  const auto run = [&](const std::pair<std::string, std::string>& flag) {
    std::vector<std::string> words = {case_path(kSource), t / "out", "--to", "hf",
                                      "--force",          flag.first};
    if (!flag.second.empty()) words.push_back(flag.second);
    return convert(words);
  };
  for (const auto& flag : flags) {
    const CommandResult result = run(flag);
    INFO(flag.first << result.err << result.out);
    CHECK(result.exit == 0);
    CHECK(std::filesystem::exists(t / "out/config.json"));
    std::filesystem::remove_all(t / "out");
  }
  std::filesystem::create_directories(model + "/snapshots/def456");
  for (const auto& flag : flags) {
    const CommandResult result = run(flag);
    INFO(flag.first);
    CHECK(result.exit == 3);
    CHECK_THAT(result.err, Contains("several revisions") && Contains("abc123, def456"));
  }
  put(t / "own/config.json", "{}");
  std::filesystem::create_directories(t / "own/snapshots/abc");
  CHECK(convert({case_path(kSource), t / "out", "--to", "hf", "--base-model", t / "own"}).exit ==
        0);
  CHECK(text_of(t / "out/config.json") == "{}");
}

TEST_CASE("a base that is not there is named, with what brings it") {
  const TemporaryFolder t;
  make_cache(t / "hub");
  const auto refused = [&](const std::string& base) {
    return convert({case_path(kSource), t / "out", "--to", "hf", "--base-model", base},
                   with_cache("HF_HUB_CACHE", t / "hub"));
  };
  for (const char* base : {"me/other", "me/tiny@v2", "me/../tiny", "../hub", "a/b/c"}) {
    INFO(base);
    CHECK(refused(base).exit == 3);
  }
  CHECK_THAT(refused("me/other").err, Contains("hf download me/other") && Contains(t / "hub"));
  CHECK_FALSE(std::filesystem::exists(t / "out"));
  CHECK(convert({case_path(kSource), t / "one.safetensors", "--base-model", t / "hub", "--only",
                 "model"})
            .exit == 2);
  CHECK(convert({case_path(kSource), t / "out", "--to", "hf", "--base-model", t / "hub",
                 "--copy-assets=" + t.path()})
            .exit == 2);
}

TEST_CASE("what was asked for and is not there is a warning") {
  const TemporaryFolder t;
  std::filesystem::create_directories(t / "empty");
  const CommandResult none =
      convert({case_path(kSource), t / "a", "--to", "hf", "--copy-assets=" + (t / "empty")});
  CHECK(none.exit == 0);
  CHECK_THAT(none.out,
             Contains("warning") && Contains("none was copied") && Contains("--base-model"));
  put(t / "half/tokenizer.json", "{}");
  CHECK_THAT(
      convert({case_path(kSource), t / "b", "--to", "hf", "--copy-assets=" + (t / "half")}).out,
      Contains("warning") && Contains("no config.json"));
  CHECK_THAT(convert({case_path(kSource), t / "c", "--to", "hf"}).out,
             Contains("--base-model MODEL"));
}

TEST_CASE("flag --to hf proves its result, unless that is refused") {
  const TemporaryFolder t;
  CHECK_THAT(convert({case_path(kSource), t / "a", "--to", "hf"}).out, Contains("verified"));
  CHECK_THAT(convert({case_path(kSource), t / "b", "--to", "hf", "--no-verify"}).out,
             !Contains("verified"));
  CHECK_THAT(convert({case_path(kSource), t / "c", "--to", "torch-dcp"}).out,
             !Contains("verified"));
  CHECK(convert({case_path(kSource), t / "d", "--to", "hf", "--verify", "--no-verify"}).exit == 2);
}

}  // namespace base_model_test
