// What ranks' files must agree on, and what is said of a rank's optimizer that is not all there.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/optim.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "lib/format/megatron_torch/packed_experts.h"
#include "lib/format/megatron_torch/rank_checks.h"
#include "tests/format/megatron_fixture.h"
#include "tests/support/edited_archive.h"
#include "tests/support/note_text.h"

namespace tessera::megatron_rank_checks_test {
namespace {

using testing::EditedArchive;
using testing::number;
using testing::RankFolders;
using testing::text;
using testing::ToyOptions;
using Arguments = std::vector<std::pair<std::string, Value>>;

ToyOptions with_args(const Arguments& arguments) {
  ToyOptions options;
  options.tp = 2;
  options.more_args = arguments;
  return options;
}

/// tp=2, rank 1's file from a job with other arguments.
struct Mixed : RankFolders {
  Mixed(const Arguments& first, const Arguments& second) : RankFolders(with_args(first)) {
    const std::string path = "mp_rank_01/model_optim_rng.pt";
    fs.write_file("/c/" + path, testing::toy_files(with_args(second)).at(path));
  }
};

ToyOptions distributed(std::int64_t tp, std::int64_t ep = 1) {
  ToyOptions options;
  options.tp = tp;
  options.ep = ep;
  if (ep > 1) options.experts = 4;
  options.optimizer = ToyOptions::Optimizer::kDistributed;
  return options;
}

void edit(RankFolders& toy, const std::string& path,
          const std::function<void(EditedArchive&)>& change) {
  toy.directory = toy.fs.open_directory("/c");
  EditedArchive archive(*toy.directory, path);
  change(archive);
  toy.fs.write_file("/c/" + path, archive.render());
}

/// The list at the top of a file that chained optimizers share, with one part taken out.
void edit_parts(RankFolders& toy, const std::string& path,
                const std::function<void(ValueList&)>& change) {
  edit(toy, path, [&](EditedArchive& archive) {
    ValueList parts = archive.archive().root.as_list();
    change(parts);
    archive.set_root(Value::list(std::move(parts)));
  });
}

/// What a reader that tolerates damage says, a line each.
std::string findings(RankFolders& toy) {
  ReadOptions options;
  options.tolerate_damage = true;
  std::string lines;
  for (const Note& note : toy.read(options).notes)
    lines += testing::note_code(note) + " " + testing::note_severity(note) + " [" + note.file +
             "] " + note.message + "\n";
  return lines;
}

std::string refusal(RankFolders& toy) {
  std::string message;
  CHECK(toy.failure(message) == Code::kCorrupt);
  return message;
}

}  // namespace

TEST_CASE("args that ranks of one job cannot state differently are named with both ranks") {
  const std::vector<std::pair<Arguments, Arguments>> cases = {
      {{{"num_layers", number(4)}}, {{"num_layers", number(5)}}},
      {{{"hidden_size", number(4)}}, {{"hidden_size", number(5)}}},
      {{{"num_query_groups", number(4)}}, {{"num_query_groups", number(5)}}},
      {{{"context_parallel_size", number(4)}}, {{"context_parallel_size", number(5)}}},
      {{{"padded_vocab_size", number(4)}}, {{"padded_vocab_size", number(5)}}}};
  for (const auto& [first, second] : cases) {
    CAPTURE(first[0].first);
    Mixed toy(first, second);
    const std::string wanted = "args." + first[0].first + " is 4 in mp_rank_00 and 5 in mp_rank_01";
    CHECK_THAT(refusal(toy), Catch::Contains(wanted));
    CHECK_THAT(findings(toy),
               Catch::Contains("CK066 error [mp_rank_01/model_optim_rng.pt] " + wanted));
  }
  Mixed kinds({{"normalization", text("LayerNorm")}, {"num_experts", Value()}},
              {{"normalization", text("RMSNorm")}, {"num_experts", number(8)}});
  CHECK_THAT(findings(kinds),
             Catch::Contains(R"(args.normalization is "LayerNorm" in mp_rank_00 and "RMSNorm")") &&
                 Catch::Contains("args.num_experts is None in mp_rank_00 and 8 in mp_rank_01"));
}

TEST_CASE("what belongs to a rank, paths and counters may differ between args") {
  Mixed toy({{"local_rank", number(0)}, {"save", text("/a")}, {"seed", number(1)}},
            {{"local_rank", number(1)}, {"save", text("/b")}, {"seed", number(2)}});
  CHECK_NOTHROW(toy.read());
  CHECK_THAT(findings(toy), !Catch::Contains("CK066"));
  CHECK(megatron_torch::must_agree("kv_channels"));
  CHECK_FALSE(megatron_torch::must_agree("rank"));
}

TEST_CASE("rank files of two iterations are told apart") {
  ToyOptions options;
  options.tp = 2;
  RankFolders toy(options);
  edit(toy, "mp_rank_01/model_optim_rng.pt",
       [](EditedArchive& a) { a.set({text("iteration")}, number(200)); });
  CHECK_THAT(refusal(toy), Catch::Contains("iteration is 100 in mp_rank_00 and 200 in mp_rank_01"));
}

TEST_CASE("a rank's file that was copied over another's is known by args.rank and its bytes") {
  ToyOptions options;
  options.tp = 2;
  for (const auto& [from, to] : {std::pair{"00", "01"}, std::pair{"01", "00"}}) {
    RankFolders toy(options);
    const std::string file = "/c/mp_rank_{}/model_optim_rng.pt";
    toy.fs.write_file(fmt::format(fmt::runtime(file), to),
                      toy.fs.read_file(fmt::format(fmt::runtime(file), from)));
    CHECK_THAT(refusal(toy), Catch::Contains("are the same bytes"));
  }
}

TEST_CASE("rank files that lie in each other's folders are told by args.rank") {
  for (const bool stages : {false, true}) {
    ToyOptions options;
    (stages ? options.pp : options.tp) = 2;
    RankFolders toy(options);
    CHECK_NOTHROW(toy.read());
    const std::string file = "/model_optim_rng.pt";
    const std::string a = stages ? "/c/mp_rank_00_000" : "/c/mp_rank_00";
    const std::string b = stages ? "/c/mp_rank_00_001" : "/c/mp_rank_01";
    const Bytes first = toy.fs.read_file(a + file), second = toy.fs.read_file(b + file);
    toy.fs.write_file(a + file, second);
    toy.fs.write_file(b + file, first);
    CHECK_THAT(refusal(toy), Catch::Contains("args.rank is 1 in") &&
                                 Catch::Contains("the files lie in each other's folders"));
  }
}

// distrib_optim.pt says nothing of its rank: its sizes and layout are those of every
// tensor-parallel rank. What tells it is that masters round to the weights beside them.
TEST_CASE("optimizer files that lie in each other's folders are told by their masters") {
  namespace files = std::filesystem;
  const files::path data =
      TESSERA_SOURCE_DIR "/tests/format/data/megatron_ranks/grouped_tp2_ep2/iter_0000007";
  MemoryFileSystem fs;
  for (const auto& entry : files::recursive_directory_iterator(data)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    fs.write_file("/c/" + files::relative(entry.path(), data).string(), as_bytes(text));
  }
  const auto unlike = [&] {
    OpenedCheckpoint opened = open_checkpoint(fs, "/c", {});
    std::size_t count = 0;
    for (const Note& finding : inspect_optimizer(opened, nullptr, {}).findings)
      count += testing::note_code(finding) == "OP018";
    return count;
  };
  CHECK(unlike() == 0);
  const std::string a = "/c/mp_rank_00_000/distrib_optim.pt";
  const std::string b = "/c/mp_rank_01_000/distrib_optim.pt";
  const Bytes first = fs.read_file(a), second = fs.read_file(b);
  fs.write_file(a, second);
  fs.write_file(b, first);
  CHECK(unlike() > 0);
}

TEST_CASE("each rank that lost its distrib_optim.pt is named with what is lost") {
  RankFolders toy(distributed(4));
  toy.fs.remove_file("/c/mp_rank_01/distrib_optim.pt");
  toy.fs.remove_file("/c/mp_rank_03/distrib_optim.pt");
  CHECK_THAT(refusal(toy), Catch::Contains("distrib_optim.pt is missing in mp_rank_01, mp_rank_03: "
                                           "the optimizer's state"));
  CHECK_THAT(findings(toy), Catch::Contains("CK010 error [mp_rank_01/distrib_optim.pt]"));
}

TEST_CASE("where no rank has a distrib_optim.pt that is worth a warning") {
  for (const std::int64_t tp : {1, 2}) {
    RankFolders toy(distributed(tp));
    for (std::int64_t t = 0; t < tp; ++t)
      toy.fs.remove_file("/c/mp_rank_0" + std::to_string(t) + "/distrib_optim.pt");
    CHECK_NOTHROW(toy.read());
    CHECK_THAT(findings(toy), Catch::Contains("CK010 warning [mp_rank_00/distrib_optim.pt]"));
  }
  RankFolders plain((ToyOptions()));
  CHECK_THAT(findings(plain), !Catch::Contains("distrib_optim"));
}

TEST_CASE("a rank's optimizer file without the experts' part is told") {
  const std::string path = "mp_rank_00_001/distrib_optim.pt";
  for (const bool shorter : {false, true}) {
    CAPTURE(shorter);
    RankFolders toy(distributed(1, 2));
    CHECK_THAT(findings(toy), !Catch::Contains("CK024"));
    edit_parts(toy, path, [&](ValueList& parts) {
      shorter ? parts.pop_back() : static_cast<void>(parts[1] = Value());
    });
    CHECK_THAT(refusal(toy), Catch::Contains("holds no state of") && Catch::Contains("experts"));
    CHECK_THAT(findings(toy), Catch::Contains("CK024 error [" + path + "]") &&
                                  Catch::Contains("tensors of mp_rank_00_001"));
  }
}

TEST_CASE("dense parameters of one expert rank alone are no loss") {
  RankFolders toy(distributed(1, 2));
  const auto before = toy.content();
  edit_parts(toy, "mp_rank_00_001/distrib_optim.pt", [](ValueList& parts) { parts[0] = Value(); });
  CHECK_THAT(findings(toy), !Catch::Contains("CK024"));
  CHECK(toy.content() == before);
}

TEST_CASE("a rank's optimizer file without one of its buffers is told") {
  for (const std::int64_t tp : {1, 2}) {
    RankFolders toy(distributed(tp));
    edit(toy, "mp_rank_00/distrib_optim.pt", [](EditedArchive& a) { a.erase({number(0)}); });
    CHECK_THAT(refusal(toy), Catch::Contains("holds no state of"));
    CHECK_THAT(findings(toy), Catch::Contains("CK024 error [mp_rank_00/distrib_optim.pt]"));
  }
}

TEST_CASE("a rank's file that cannot be read counts as lost where damage is tolerated") {
  for (const std::string name : {"model_optim_rng.pt", "distrib_optim.pt"}) {
    for (const std::size_t part : {0, 1, 2}) {  // nothing, half, all but a byte
      CAPTURE(name, part);
      RankFolders toy(distributed(2));
      const std::string path = "/c/mp_rank_01/" + name;
      Bytes bytes = toy.fs.read_file(path);
      bytes.resize(part == 2 ? bytes.size() - 1 : bytes.size() * part / 2);
      toy.fs.write_file(path, bytes);
      refusal(toy);
      CHECK_THAT(findings(toy),
                 Catch::Contains("CK042 error [mp_rank_01/" + name + "]") &&
                     Catch::Contains("the file cannot be read and counts as lost: "));
    }
  }
}

TEST_CASE("a fault of the second matrix of packed experts is reported as its own") {
  const std::string owner = "decoder.layers.0.mlp.";
  const std::map<std::string, Shape> known = {{owner + "experts.weight1", {8, 24}},
                                              {owner + "experts.weight2", {12, 9}},
                                              {owner + "router.weight", {4, 8}}};
  try {
    in_tensor(owner + "experts.weight1", [&] {
      megatron_torch::packed_view(
          owner + "experts.weight1",
          [&](const std::string& name) -> std::optional<Shape> { return known.at(name); }, {}, 2);
    });
    FAIL("the matrix was taken");
  } catch (const Error& error) {
    CHECK(error.status().context.tensor == owner + "experts.weight2");
  }
}

TEST_CASE("layers and experts that do not divide are no tensor's fault") {
  ToyOptions options;
  options.experts = 4;
  RankFolders toy(options);
  const Manifest manifest = toy.read();
  for (const std::string mesh : {"pp=3", "ep=3"}) {
    try {
      megatron_torch_driver().output_plan(manifest, testing::mesh_request(mesh));
      FAIL("it was shared");
    } catch (const Error& error) {
      CHECK(error.status().context.tensor.empty());
      CHECK_THAT(error.status().message, Catch::Contains("(the tensors decoder.layers."));
    }
  }
}

}  // namespace tessera::megatron_rank_checks_test
