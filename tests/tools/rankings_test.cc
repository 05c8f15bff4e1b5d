// --sort, --top and --by: what is looked for comes first, in the order that was asked for.
#include <tessera/encoding/json.h>
#include <tessera/ops/diff.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/support/run_command.h"
#include "tests/support/safetensors_file.h"
#include "tools/render/screen.h"

namespace rankings_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

using Tensors = std::vector<std::pair<std::string, std::vector<float>>>;

void write_floats(const std::string& path, const Tensors& tensors, std::size_t rows = 1) {
  std::string header = "{", data;
  for (const auto& [name, values] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header += (header.size() > 1 ? "," : "") + ("\"" + name) + "\":{\"dtype\":\"F32\",\"shape\":[" +
              std::to_string(rows) + "," + std::to_string(values.size() / rows) +
              "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) +
              "]}";
  }
  std::ofstream(path, std::ios::binary) << safetensors_of(header + "}", data);
}

Value json_of(std::vector<std::string> words) {
  words.insert(words.end(), {"--format", "json"});
  return parse_json(as_bytes(inspect(words).out));
}

std::vector<std::string> names_in(const Value& list, const char* key = "name") {
  std::vector<std::string> names;
  for (const Value& row : list.as_list()) names.push_back(row.find(key)->as_string());
  return names;
}

using Names = std::vector<std::string>;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("stat gives findings first, and the tensors that were asked for") {
  const TemporaryFolder t;
  const std::string path = t / "a.safetensors";
  write_floats(path, {{"layers.10.w", {1, 2, 3, 0}},
                      {"layers.2.w", {100, 1, 1, 1}},
                      {"layers.3.w", {0, 0, 0, 1}},
                      {"layers.4.w", {5, kNaN, 5, 6}}});
  const auto sorted = [&](const char* by) {
    return names_in(*json_of({"stat", path, "--sort", by}).find("tensors"));
  };
  CHECK(sorted("name") == Names{"layers.2.w", "layers.3.w", "layers.4.w", "layers.10.w"});
  CHECK(sorted("abs-max").front() == "layers.2.w");
  CHECK(sorted("zeros").front() == "layers.3.w");
  CHECK(sorted("nan").front() == "layers.4.w");
  CHECK(sorted("stored").front() == "layers.10.w");
  const Value top = json_of({"stat", path, "--sort", "l2", "--top", "2"});
  CHECK(names_in(*top.find("tensors")) == Names{"layers.2.w", "layers.4.w"});
  CHECK(top.find("findings")->as_list().size() == 1);  // of all, whatever is listed
  const CommandResult text = inspect({"stat", path, "--top", "1"});
  CHECK(text.exit == 1);
  CHECK(text.out.find("ST001") < text.out.find("layers.10.w"));
  CHECK_THAT(text.out, Contains("4 tensors"));
  CHECK(inspect({"stat", path, "--sort", "shape"}).exit == 2);
}

TEST_CASE("a histogram goes over magnitudes where a few large values would hide all others") {
  const TemporaryFolder t;
  std::vector<float> spread, even;
  for (int i = 0; i < 1000; ++i) {
    spread.push_back(std::pow(10.0F, static_cast<float>(i % 8) - 10));
    even.push_back(static_cast<float>(i));
  }
  spread.push_back(1e6F);
  write_floats(t / "a.safetensors", {{"v", spread}});
  write_floats(t / "b.safetensors", {{"v", even}});
  CHECK_THAT(inspect({"stat", t / "a.safetensors"}).out, Contains("magnitudes") && Contains("1e6"));
  CHECK_THAT(inspect({"stat", t / "b.safetensors"}).out, !Contains("magnitudes"));
  // Programs get what they ask for.
  const auto scale = [&](std::vector<std::string> words) {
    const Value tensors = *json_of(std::move(words)).find("tensors");
    return std::string(tensors.as_list()[0].find("histogram")->find("scale")->as_string());
  };
  CHECK(scale({"stat", t / "a.safetensors"}) == "linear");
  CHECK(scale({"stat", t / "a.safetensors", "--log-histogram"}) == "log10");
}

TEST_CASE("optim ranks by what was asked for, and says the state once where all have the same") {
  const std::string path = case_path("dcp/fsdp2_w4");
  const auto updates = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"optim", path};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(words).find("optimizers")->as_list()[0].find("updates")->as_list();
  };
  const auto number = [](const Value& row, const char* key) { return row.find(key)->as_real(); };
  const std::pair<const char*, const char*> keys[] = {
      {"ratio", "ratio"}, {"update", "update_norm"}, {"weight", "weight_norm"}, {"v", "v_max"}};
  for (const auto& [sort, key] : keys) {
    const ValueList rows = updates({"--sort", sort});
    REQUIRE(rows.size() == 13);
    for (std::size_t i = 1; i < rows.size(); ++i)
      CHECK(number(rows[i - 1], key) >= number(rows[i], key));
  }
  CHECK(updates({"--top", "3"}).size() == 3);
  CHECK(inspect({"optim", path, "--sort", "growth"}).exit == 2);
  CHECK(inspect({"optim", path, path, "--sort", "growth"}).exit == 0);
  const std::string text = inspect({"optim", path, "--top", "2"}).out;
  CHECK_THAT(text, Contains("11 more") && Contains("size of the next update"));
  const std::string name = updates({"--top", "1"})[0].find("name")->as_string();
  CHECK(text.find(name) == text.rfind(name));  // in the ranking alone
}

TEST_CASE("diff by layer names each layer once, with what changed most in it") {
  const TemporaryFolder t;
  const Tensors before{{"model.embed.weight", {1, 1}},       {"model.layers.2.a.weight", {3, 4}},
                       {"model.layers.2.b.weight", {3, 4}},  {"model.layers.10.a.weight", {3, 4}},
                       {"model.layers.11.a.weight", {3, 4}}, {"model.layers.12.a.weight", {1, 1}}};
  Tensors after = before;
  after[1].second = {3, 5};    // |change| 1 of 5
  after[2].second = {6, 8};    // 5 of 5
  after[3].second = {3, 4.5};  // 0.5 of 5
  after[5].second = {1, kNaN};
  write_floats(t / "a.safetensors", before);
  write_floats(t / "b.safetensors", after);
  const Value document =
      json_of({"diff", t / "a.safetensors", t / "b.safetensors", "--by", "layer"});
  const ValueList& layers = document.find("layers")->as_list();
  REQUIRE(names_in(*document.find("layers")) ==
          Names{"model.layers.2", "model.layers.10", "model.layers.12"});
  CHECK(layers[0].find("tensors")->as_int() == 2);
  CHECK(layers[0].find("most_changed")->as_string() == "model.layers.2.b.weight");
  CHECK(layers[0].find("most_relative_l2")->as_real() == Approx(1));
  CHECK(layers[0].find("relative_l2")->as_real() == Approx(std::sqrt(26.0 / 50)));
  CHECK(layers[1].find("relative_l2")->as_real() == Approx(0.1));
  const CommandResult text = inspect(
      {"diff", t / "a.safetensors", t / "b.safetensors", "--by", "layer", "--sort", "change"});
  CHECK(text.exit == 1);
  CHECK(text.out.find("model.layers.2") < text.out.find("model.layers.10"));
  CHECK_THAT(text.out, Contains("b.weight") && Contains("100.0 %") && Contains("NaN or Inf"));
  CHECK_FALSE(json_of({"diff", t / "a.safetensors", t / "b.safetensors"}).find("layers"));
}

TEST_CASE("corners are as wide as the screen, and every row is one line") {
  const TemporaryFolder t;
  std::vector<float> values;
  for (int i = 0; i < 40 * 40; ++i) values.push_back(-1.2345678e-20F * static_cast<float>(i + 1));
  write_floats(t / "a.safetensors", {{"w", values}}, 40);
  for (const char* columns : {"40", "60", "80", "100", "120"}) {
    CommandOptions narrow;
    narrow.environment["COLUMNS"] = columns;
    std::istringstream lines(inspect({"show", t / "a.safetensors", "w"}, narrow).out);
    int rows = 0;
    bool in_values = false;
    for (std::string line; std::getline(lines, line);) {
      INFO(columns << ": " << line);
      CHECK(tools::display_width(line) <= std::atoi(columns));
      if (in_values && line.find("e-") != std::string::npos) ++rows;
      in_values = in_values || line.find("values (corners)") != std::string::npos;
    }
    CHECK(rows == 6);
  }
}

}  // namespace rankings_test
