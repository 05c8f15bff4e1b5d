// How engines over several tensor-parallel ranks are told to cut a parameter of a Universal
// Checkpoint: the notes that ds_to_universal makes of a client's patterns, and the patterns.
#include <tessera/encoding/json.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/deepspeed_universal/merge_notes.h"
#include "lib/format/deepspeed_zero/values.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace deepspeed_patterns_test {

using namespace tessera;
using namespace tessera::testing;
using deepspeed::MergeNotes;
using deepspeed::NamePattern;
using deepspeed::text;

namespace {

Value patterns(std::initializer_list<const char*> list) {
  ValueList out;
  for (const char* one : list) out.push_back(text(one));
  return Value::list(std::move(out));
}

Value some_info() {
  return Value::dict(
      {{text("universal_checkpoint_version"), Value::real(0.2)},
       {text("parameter_with_row_parallelism_patterns"),
        patterns({R"(layers\.\d+\.down\.weight)"})},
       {text("vocabulary_parameter_patterns"), patterns({"embed.weight"})},
       {text("original_vocab_size"), Value::integer(10)},
       {text("tp_replicated_parameter_patterns"), patterns({R"(layers\.\d+\.norm\..*)"})},
       {text("parameter_with_2_sub_params_cat_dim_0"), patterns({R"(layers\.\d+\.up\.weight)"})},
       {text("parameter_to_average_patterns"), patterns({"head.bias"})}});
}

/// Stage 2 of two ranks whose model file has `info` among the caller's own keys.
Manifest with_info(const SampleCase& sample, Value info) {
  Manifest manifest = read_all(deepspeed_zero_driver(), sample.place());
  const std::string name(deepspeed::kUniversalInfo);
  for (const auto& [key, value] : info.as_dict()) {
    Path path = deepspeed::path_of({name, key.as_string()});
    manifest.state.entries.push_back({dotted(path), path, value});
  }
  return manifest;
}

Value file_of(const WrittenCheckpoint& written, const std::string& parameter) {
  const auto file =
      written.directory->open("global_step2_universal/zero/" + parameter + "/exp_avg.pt");
  return open_torch_archive(ByteWindow::whole(*file)).root;
}

}  // namespace

TEST_CASE("patterns match as Python's re.match does") {
  const std::vector<std::string> names = {"tied_modules.embed.word_embeddings.weight",
                                          "10.mlp.dense_4h_to_h.weight",
                                          "x10.mlp.dense_4h_to_h.weight",
                                          "layers.3.down.weight",
                                          "layers.3.down.weight2",
                                          "layers..down.weight",
                                          "head",
                                          "heads",
                                          "head.bias",
                                          "aab",
                                          "c",
                                          "abcx",
                                          "ab_1.x",
                                          "",
                                          "x",
                                          "aaa",
                                          "aa"};
  // ''.join('1' if re.match(pattern, name) else '0' for name in names), by Python 3.11
  const std::vector<std::pair<std::string, std::string>> matched = {
      {"tied_modules.embed.word_embeddings.weight", "10000000000000000"},
      {R"(\d+.mlp.dense_4h_to_h.weight)", "01000000000000000"},
      {R"(layers\.\d+\.down\.weight)", "00011000000000000"},
      {"^head$", "00000010000000000"},
      {".*bias", "00000000100000000"},
      {"a+b*c?", "00000000010110011"},
      {R"(\w+?\.x)", "00000000000010000"},
      {"", "11111111111111111"},
      {"x$", "00000000000000100"},
      {".+", "11111111111110111"},
      {"a?a?a?aaa", "00000000000000010"}};
  for (const auto& [pattern, want] : matched) {
    INFO(pattern);
    const auto parsed = NamePattern::parse(pattern);
    REQUIRE(parsed);
    std::string got;
    for (const std::string& name : names) got += parsed->matches(name) ? '1' : '0';
    CHECK(got == want);
  }
}

TEST_CASE("patterns of other kinds are not guessed at") {
  for (const char* pattern : {"(a|b)", "a|b", "[ab]", "a{2}", "a**", "*a", "a$b", R"(\bword)",
                              "a\\", "a^", R"(\1)", "\xc3\xa4", "(?i)a"}) {
    INFO(pattern);
    CHECK_FALSE(NamePattern::parse(pattern));
  }
}

TEST_CASE("a pattern that is made to be slow is not") {
  std::string slow;
  for (int i = 0; i < 200; ++i) slow += "a?";
  const auto pattern = NamePattern::parse(slow + std::string(200, 'a') + "$");
  REQUIRE(pattern);
  CHECK(pattern->matches(std::string(250, 'a')));
  CHECK_FALSE(pattern->matches(std::string(250, 'a') + "b"));
}

TEST_CASE("a Universal Checkpoint says of each parameter what the patterns make of it") {
  const SampleCase sample("deepspeed/zero2_w2");
  const Manifest source = with_info(sample, some_info());
  const WrittenCheckpoint written(deepspeed_universal_driver(), source, *sample.directory);
  for (const Note& note : written.plan.notes) CHECK(note_code(note) != "CK100");
  const auto keys = [&](const std::string& parameter) {
    std::string out;
    const Value file = file_of(written, parameter);
    for (const auto& [key, value] : file.as_dict())
      if (key.as_string() != "param") out += key.as_string() + "=" + canonical_json(value) + " ";
    return out;
  };
  CHECK(keys("layers.0.down.weight") == "cat_dim=1 ");
  CHECK(keys("layers.1.up.weight") == "cat_dim=0 param_n_sub_params=2 ");
  CHECK(keys("layers.1.norm.weight") == "");
  CHECK(keys("head.bias") == "");
  CHECK(keys("embed.weight") == "cat_dim=0 vocab_tensor=true ");
  CHECK(keys("head.weight") == "cat_dim=0 ");
  const Manifest there = read_all(deepspeed_universal_driver(), written.place());
  CHECK(content_of(there, *written.directory) == content_of(source, *sample.directory));
  CHECK(values_of(there, *written.directory) == values_of(source, *sample.directory));
}

TEST_CASE("where a pattern is not understood, all are left alone and the result says so") {
  const SampleCase sample("deepspeed/zero2_w2");
  for (const auto& [key, value] : std::vector<std::pair<std::string, Value>>{
           {"tp_replicated_parameter_patterns", patterns({"(a|b)"})},
           {"tp_replicated_parameter_patterns", patterns({std::string(5000, 'a').c_str()})},
           {"parameter_with_row_parallelism_patterns", Value::integer(3)},
           {"parameter_with_sub_params", Value::list({Value::dict({})})}}) {
    INFO(key);
    ValueDict info = some_info().as_dict();
    std::erase_if(info, [&](const auto& one) { return one.first == text(key); });
    info.emplace_back(text(key), value);
    const Manifest source = with_info(sample, Value::dict(std::move(info)));
    const WrittenCheckpoint written(deepspeed_universal_driver(), source, *sample.directory);
    CHECK(std::ranges::count(written.plan.notes, "CK100", note_code<Note>) == 1);
    CHECK(*file_of(written, "layers.0.down.weight").find("cat_dim") == Value::integer(0));
  }
  CHECK_FALSE(MergeNotes(nullptr).known());
  const Value none = Value::dict({});
  CHECK_FALSE(MergeNotes(&none).known());
}

}  // namespace deepspeed_patterns_test
