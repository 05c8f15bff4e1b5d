// The browser without a terminal: keys in, pictures out; and its tree against a plain count of the names.
#include <tessera/ops/open.h>
#include <tessera/storage/file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/safetensors_file.h"
#include "tools/browse/browser.h"
#include "tools/browse/reader.h"

namespace browse_test {

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tools;

namespace {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  float first = 0;  // elements count up from it
};

std::string file_of(const std::vector<Tensor>& tensors) {
  std::string header = "{", data;
  for (const Tensor& t : tensors) {
    std::string shape;
    std::int64_t numel = 1;
    for (const std::int64_t extent : t.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
      numel *= extent;
    }
    const std::size_t begin = data.size();
    for (std::int64_t i = 0; i < numel; ++i) {
      const float value = t.first + static_cast<float>(i);
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + t.name + "\":{\"dtype\":\"F32\",\"shape\":[" +
              shape + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  return safetensors_of(header + "}", data);
}

/// A model of twelve layers, the last of them wider; `changed` is added to one tensor.
std::vector<Tensor> model(float changed = 0) {
  std::vector<Tensor> tensors{{"model.embed.weight", {20, 4}}};
  for (int layer = 0; layer < 12; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back(
        {prefix + "attn.q.weight", {4, layer == 11 ? 8 : 4}, layer == 7 ? changed : 0});
    tensors.push_back({prefix + "norm.weight", {4}});
  }
  tensors.push_back({"model.Head.weight", {40, 4}});
  return tensors;
}

class Played {
 public:
  explicit Played(std::vector<std::string> files, int width = 80, int height = 24)
      : files_(std::make_unique<MemoryFileSystem>()) {
    std::vector<OpenedCheckpoint> sides;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string path = "/" + std::to_string(i) + ".safetensors";
      files_->write_file(path, as_bytes(files[i]));
      sides.push_back(open_checkpoint(*files_, path));
    }
    start(std::move(sides), width, height);
  }
  Played(std::vector<OpenedCheckpoint> sides, int width, int height) {
    start(std::move(sides), width, height);
  }

  /// Letters one by one; "<Down>" and the like are keys. All that is wanted is read before the next.
  Played& press(const std::string& keys) {
    static const std::map<std::string, Key> kNames = {
        {"Up", Key::kUp},       {"Down", Key::kDown},   {"Left", Key::kLeft},
        {"Right", Key::kRight}, {"PgUp", Key::kPageUp}, {"PgDn", Key::kPageDown},
        {"Home", Key::kHome},   {"End", Key::kEnd},     {"Enter", Key::kEnter},
        {"Esc", Key::kEscape},  {"Tab", Key::kTab},     {"Back", Key::kBackspace}};
    for (std::size_t at = 0; at < keys.size(); ++at) {
      const std::size_t end = keys[at] == '<' ? keys.find('>', at) : keys.npos;
      const auto named =
          end == keys.npos ? kNames.end() : kNames.find(keys.substr(at + 1, end - at - 1));
      if (named != kNames.end()) {
        browser->press({named->second});
        at = end;
      } else {
        browser->press({Key::kText, keys.substr(at, 1)});
      }
      read();
    }
    return *this;
  }
  void read() {
    for (int i = 0; i < 1000; ++i) {
      const std::vector<Want> wants = browser->take_wants();
      if (wants.empty()) return;
      for (const Want& want : wants)
        browser->deliver(reader->answer(want, nullptr, nullptr)), ++answered;
    }
    FAIL("it never has enough");
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> out;
    for (const PictureLine& line : browser->picture()) out.push_back(plain_text(line));
    return out;
  }
  std::string text() const { return plain_text(browser->picture()); }
  bool shows(const std::string& part) const { return text().find(part) != std::string::npos; }
  std::string at_cursor() const {
    return browser->tree().label(browser->tree().rows()[browser->tree().cursor()]);
  }
  std::vector<std::string> labels() const {
    std::vector<std::string> out;
    for (const TreeView::Row& row : browser->tree().rows())
      out.push_back(browser->tree().label(row));
    return out;
  }

  std::unique_ptr<BrowseReader> reader;
  std::unique_ptr<Browser> browser;
  int answered = 0;

 private:
  void start(std::vector<OpenedCheckpoint> sides, int width, int height) {
    const bool two = sides.size() > 1;
    BrowseList list(sides[0].manifest, two ? &sides[1].manifest : nullptr);
    const BrowseTitle title{sides[0].display, two ? sides[1].display : ""};
    TransferOptions limits;
    limits.memory_limit_bytes = std::uint64_t{8} << 20;
    reader = std::make_unique<BrowseReader>(std::move(sides), list.items(), limits);
    browser = std::make_unique<Browser>(std::move(list), title);
    browser->resize(width, height);
    read();
  }
  std::unique_ptr<MemoryFileSystem> files_;
};

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("the tree folds layers that are alike, and opens into each") {
  Played p({file_of(model())});
  CHECK(p.labels() == Labels{"model", "Head.weight", "embed.weight", "layers"});
  p.press("G<Right>");
  CHECK(p.labels() == Labels{"model", "Head.weight", "embed.weight", "layers", "11", "[0-10]"});
  CHECK(p.shows("11 alike of 80 B"));
  p.press("G<Right>");
  CHECK(p.labels().size() == 6 + 11);
  p.press("<Right><Right>");
  CHECK(p.at_cursor() == "0");
  p.press("<Right>");
  CHECK(p.at_cursor() == "attn.q.weight");
  p.press("<Left><Left><Left><Left>");  // to its layer, closed; to the fold, closed
  CHECK(p.at_cursor() == "[0-10]");
  CHECK(p.labels().size() == 6);
  p.press("E");
  CHECK(p.labels() == Labels{"model"});
  p.press("e");
  CHECK(p.labels().size() == 1 + 2 + 1 + 2 + 11 + 24);
}

TEST_CASE("sizes of the tree are sums of the names below") {
  std::mt19937 random(7);
  std::vector<Tensor> tensors;
  std::set<std::string> names;
  for (int i = 0; i < 200; ++i) {
    std::string name;
    for (std::uint32_t depth = 1 + random() % 5; depth > 0; --depth)
      name += (name.empty() ? "" : ".") + std::string(random() % 2 ? "m" : "") +
              std::to_string(random() % 4);
    if (!names.insert(name).second) continue;
    tensors.push_back({name, {1 + static_cast<std::int64_t>(random() % 2)}});
  }
  Played p({file_of(tensors)});
  const ModuleTree& tree = p.browser->list().tree();
  CHECK(tree[ModuleTree::kRoot].tensors == tensors.size());
  for (std::uint32_t node = 1; node < tree.size(); ++node) {
    if (tree[node].alike > 0) continue;
    const std::string name = tree.full_name(node);
    std::uint64_t bytes = 0;
    for (const Tensor& t : tensors)
      if (t.name == name || t.name.starts_with(name + "."))
        bytes += 4 * static_cast<std::uint64_t>(t.shape[0]);
    CHECK(tree[node].bytes == bytes);
  }
  // Depth first, each node once, both ways.
  std::vector<std::uint32_t> order;
  for (std::uint32_t at = ModuleTree::kRoot; at != ModuleTree::kNone;
       at = tree.next(at, ModuleTree::kRoot))
    order.push_back(at);
  CHECK(order.size() == tree.size());
  for (std::size_t i = 2; i < order.size(); ++i)
    CHECK(tree.previous(order[i], ModuleTree::kRoot) == order[i - 1]);
}

TEST_CASE("search finds what no line shows yet, and goes round") {
  Played p({file_of(model())});
  p.press("/q.weight<Enter>");
  CHECK(p.at_cursor() == "attn.q.weight");
  const std::string first = p.lines().back().substr(0, 40);
  CHECK(first.find("model.layers.11.attn.q.weight") != first.npos);
  p.press("n");
  CHECK(p.lines().back().find("model.layers.0.attn.q.weight") != std::string::npos);
  p.press("N");
  CHECK(p.lines().back().starts_with(first));
  p.press("N");
  CHECK(p.shows("on from the other end"));
  p.press("<Down><Up>");
  CHECK(p.lines().back().find("model.layers.10.attn.q.weight") != std::string::npos);
  p.press("/head<Enter>");
  CHECK(p.at_cursor() == "Head.weight");
  p.press("/HEAD<Enter>");
  CHECK(p.shows("no name here holds \"HEAD\""));
  p.press("/nor<Back>wh<Esc>");
  CHECK_FALSE(p.shows("nowh"));
  p.press("?q/layers.7<Enter>");
  CHECK(p.at_cursor() == "7");
}

TEST_CASE("lines are sorted by size, name, count and as stored, and back") {
  Played p({file_of(model())});
  p.press("s");
  CHECK(p.labels() == Labels{"model", "layers", "Head.weight", "embed.weight"});
  p.press("s");
  CHECK(p.labels() == Labels{"model", "embed.weight", "Head.weight", "layers"});
  CHECK(p.shows("by size, reversed"));
  p.press("c");
  CHECK(p.labels()[1] == "layers");
  p.press("o");
  CHECK(p.labels() == Labels{"model", "embed.weight", "layers", "Head.weight"});
  p.press("a");
  CHECK(p.labels() == Labels{"model", "Head.weight", "embed.weight", "layers"});
}

TEST_CASE("marks are summed, found again and handed over at the end") {
  Played p({file_of(model())});
  p.press("/embed<Enter>m");
  CHECK(p.shows("1 tensor marked, 320 B"));
  CHECK(p.at_cursor() == "layers");
  p.press("m");
  CHECK(p.shows("25 tensors marked"));
  p.press("/norm<Enter>m");  // below a module that is marked: counted once
  CHECK(p.shows("25 tensors marked"));
  CHECK(p.browser->marked_names().size() == 25);
  p.press("g'");
  CHECK(p.at_cursor() == "embed.weight");
  p.press("M");
  CHECK_FALSE(p.shows("marked"));
  p.press("q");
  CHECK(p.browser->is_done());
  CHECK(p.browser->marked_names().empty());
}

TEST_CASE("Enter shows a module alone, and u what is around it") {
  Played p({file_of(model())});
  p.press("/layers<Enter><Enter>");
  CHECK(p.labels() == Labels{"11", "[0-10]"});
  p.press("u");
  CHECK(p.at_cursor() == "layers");
  p.press("<Enter><Left>");
  CHECK(p.at_cursor() == "layers");
}

TEST_CASE("the page of a tensor has facts, a histogram, values and pieces") {
  Played p({file_of(model())});
  p.press("/embed<Enter><Enter>");
  CHECK(p.shows("[1 facts]"));
  CHECK(p.shows("[20, 4], 80 elements"));
  const int read = p.answered;
  p.press("2");
  CHECK(p.answered == read + 1);
  CHECK(p.shows("0 .. 79, largest magnitude 79"));
  CHECK(p.shows("64 bins"));
  p.press("L");
  CHECK(p.shows("log10 of magnitudes"));
  p.press("3");
  CHECK(p.shows("rows 0-19 of 20, columns 0-3 of 4"));
  CHECK(p.lines()[3].find(" 7 ") != std::string::npos);
  p.press("4");
  CHECK(p.shows("0.safetensors"));
  p.press("5");
  CHECK(p.shows("No optimizer here has state for it."));
  p.press("<Tab>");
  CHECK(p.shows("[1 facts]"));
  p.press("q");
  CHECK(p.at_cursor() == "embed.weight");
  CHECK_FALSE(p.browser->is_done());
}

TEST_CASE("values scroll by rows, columns and planes, and are what show says") {
  Played p({file_of({{"w", {3, 100, 50}}, {"v", {1000}}, {"s", {}}, {"none", {0, 4}}})});
  const auto open_values = [&](const std::string& name) {
    p.press("q").press("/" + name + "<Enter><Enter>3");
  };
  p.press("/w<Enter><Enter>3");
  CHECK(p.shows("[0, :, :]  rows 0-20 of 100"));
  // Element [2, 57, 31] is number 2 * 5000 + 57 * 50 + 31.
  p.press(":2,57,31<Enter>");
  CHECK(p.shows("[2, :, :]  rows 57-77 of 100, columns 31-"));
  CHECK(p.lines()[2].find(" 12881") != std::string::npos);
  p.press("<Down><Right>");
  CHECK(p.lines()[2].find(" 12932") != std::string::npos);
  p.press("[");
  CHECK(p.lines()[2].find(" 7932") != std::string::npos);
  p.press("g<Home>");
  CHECK(p.lines()[2].find(" 5000") != std::string::npos);
  p.press("G<End>");
  CHECK(p.lines()[22].find(" 9999") != std::string::npos);
  p.press(":9,0<Enter>:100,0<Enter>");
  CHECK(p.shows("no element 100,0"));
  open_values("v");
  CHECK(p.shows("elements 0-"));
  p.press(":777<Enter>");
  CHECK(p.shows(" 777"));
  p.press("G");
  CHECK(p.shows(" 999"));
  open_values("s");
  CHECK(p.shows("one element"));
  open_values("none");
  CHECK(p.shows("It has no elements."));
}

TEST_CASE("two checkpoints: what differs in form is known, in elements once compared") {
  std::vector<Tensor> other = model(0.5F);
  other.erase(other.begin());           // embed: only in A
  other.back().shape = {20, 8};         // Head: another shape
  other.push_back({"model.new", {2}});  // only in B
  Played p({file_of(model()), file_of(other)}, 100, 30);
  CHECK(p.lines()[1].starts_with(" ≠"));
  const auto mark_of = [&](const std::string& label) {
    for (const std::string& line : p.lines())
      if (line.find(label) != line.npos) return line.substr(1, 3);
    return std::string("gone");
  };
  CHECK(mark_of("Head.weight")[0] == '!');
  CHECK(mark_of("embed.weight")[0] == '-');
  CHECK(mark_of(" new ")[0] == '+');
  CHECK(mark_of("layers ")[0] == ' ');
  p.press("g=");
  CHECK(p.shows("24 tensors compared, 4 in all differ"));
  CHECK(mark_of("layers ").starts_with("≠"));
  p.press("/q.weight<Enter>d");
  CHECK(p.lines().back().find("model.layers.7.attn.q.weight") != std::string::npos);
  p.press("<Enter>");
  CHECK(p.shows("16 of 16 elements differ, at most by 0.5"));
  CHECK(p.shows("│"));
  p.press("3");
  const Picture picture = p.browser->picture();
  int inverted = 0;
  for (std::size_t i = 1; i + 1 < picture.size(); ++i)
    for (const Span& span : picture[i]) inverted += span.inverted;
  CHECK(inverted == 32);  // sixteen on each side
  p.press("qx");
  for (const std::string& label : p.labels()) CHECK(label != "norm.weight");
  p.press("xE<Right>r");
  CHECK(p.at_cursor() == "model");
  p.press("/norm<Enter>g=");
  CHECK(p.shows("everything here was compared"));
}

TEST_CASE("equal checkpoints compare equal throughout") {
  Played p({file_of(model()), file_of(model())});
  p.press("g=");
  CHECK(p.shows("26 tensors compared, 0 in all differ"));
  CHECK(p.lines()[1].starts_with(" ="));
  p.press("x");
  CHECK(p.shows("nothing is known to differ"));
}

TEST_CASE("the optimizer stands beside its parameter, and leads to its state") {
  std::vector<OpenedCheckpoint> sides;
  const auto fs = make_posix_file_system();
  sides.push_back(open_checkpoint(*fs, case_path("dcp/fsdp2_w4")));
  Played p(std::move(sides), 100, 40);
  p.press("/embed<Enter><Enter>5");
  REQUIRE(p.shows("exp_avg_sq"));
  CHECK(p.shows("weight"));
  CHECK(p.shows("of the weight:"));
  CHECK(p.shows(" lr 0.01"));
  p.press("<Enter>");
  CHECK(p.lines()[0].find("exp_avg") != std::string::npos);
  CHECK(p.shows("[1 facts]"));
  p.press("5");
  CHECK(p.shows("exp_avg_sq"));  // the same, seen from a piece of the state
  p.press("q");
  CHECK(p.shows("[5 optimizer]"));
  p.press("q");
  CHECK(p.shows("by name"));
  p.press("i");
  CHECK(p.shows("torch-dcp"));
  p.press("/param_groups<Enter>");
  CHECK(p.shows("param_groups"));
  const std::string scrolled = p.lines()[1];
  p.browser->resize(100, 40);  // as with every frame that is drawn
  CHECK(p.lines()[1] == scrolled);
}

TEST_CASE("a picture has the screen's lines and width at every size") {
  std::vector<Tensor> tensors = model();
  tensors.push_back({"a.\\u540d\\u524d.\\u91cd\\u307f." + std::string(200, 'x'), {2, 2}});
  Played p({file_of(tensors), file_of(model(1))});
  for (const std::string keys : {"e", "G", "<Enter>", "2", "3", "4", "5", "q", "?", "q", "i"}) {
    p.press(keys);
    for (const auto& [width, height] :
         {std::pair{80, 24}, {120, 40}, {40, 8}, {200, 60}, {39, 7}, {1, 1}}) {
      INFO(keys << " " << width << "x" << height);
      p.browser->resize(width, height);
      p.read();
      const std::vector<std::string> lines = p.lines();
      CHECK(lines.size() == static_cast<std::size_t>(height));
      for (const std::string& line : lines) CHECK(display_width(line) == width);
    }
  }
}

TEST_CASE("hostile names and values reach the picture escaped") {
  Played p({file_of({{"a\\u001b[2J\\u001b]0;owned\\u0007.w", {2}},
                     {"b\\nq\\u202e", {1}},
                     {"\\u009b31m", {1}},
                     {"", {1}},
                     {"..", {1}}})});
  p.press("e");
  for (const std::string keys : {"", "g<Enter>", "2", "3", "4", "5", "q", "G<Enter>", "q", "i"}) {
    p.press(keys);
    for (const char c : p.text()) CHECK((static_cast<unsigned char>(c) >= 0x20 || c == '\n'));
    CHECK_FALSE(p.shows("\u202e"));
    CHECK_FALSE(p.shows("\u009b"));
  }
  CHECK(p.shows("q"));
}

TEST_CASE("a read that fails is said on the page, and the browser goes on") {
  std::string file = file_of(model());
  Played p({file});
  Want want{Need::kValues, 0, {0, 0, 10, 0, 4}};
  CancelToken cancelled;
  cancelled.cancel();
  CHECK(p.reader->answer({Need::kNumbers, 0}, &cancelled, nullptr).stopped);
  Answer failed;
  failed.want = {Need::kNumbers, 0};
  failed.failure = "damaged \x1b[31m";
  p.press("/embed<Enter><Enter>");
  p.browser->press({Key::kText, "2"});
  p.browser->take_wants();
  p.browser->deliver(failed);
  CHECK(p.shows("damaged \\x1b[31m"));
  p.press("1");
  CHECK(p.shows("80 elements"));
}

TEST_CASE("large tensors are read on request") {
  // A sparse file of 300 MiB whose header says so.
  const TemporaryFolder t;
  const std::int64_t rows = std::int64_t{75} << 20;
  const std::string header =
      safetensors_of("{\"w\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(rows) +
                         "],\"data_offsets\":[0," + std::to_string(rows * 4) + "]}}",
                     "");
  const std::string path = t / "large.safetensors";
  FILE* file = std::fopen(path.c_str(), "wb");
  std::fwrite(header.data(), 1, header.size(), file);
  std::fseek(file, static_cast<long>(header.size()) + rows * 4 - 1, SEEK_SET);
  std::fputc(0, file);
  std::fclose(file);
  const auto fs = make_posix_file_system();
  std::vector<OpenedCheckpoint> sides;
  sides.push_back(open_checkpoint(*fs, path));
  Played p(std::move(sides), 80, 24);
  p.press("<Enter>2");
  CHECK(p.shows("The tensor has 300 MiB: r reads it."));
  CHECK(p.answered == 1);
  p.browser->press({Key::kText, "r"});
  const std::vector<Want> wants = p.browser->take_wants();
  REQUIRE(wants.size() == 1);
  CHECK(wants[0].what == Need::kNumbers);
  p.browser->press({Key::kText, "q"});
  CHECK(p.browser->take_stop().page);
}

}  // namespace browse_test
