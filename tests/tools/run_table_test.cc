// Which checkpoints of a run are whole: the table, its verdict, and several PATHs.
#include <tessera/encoding/json.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/run_command.h"

namespace run_table_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

/// Five saves: the second and fourth lost their metadata, the third a rank's file.
void make_run(const TemporaryFolder& t) {
  std::filesystem::create_directories(t / "run");
  for (const char* step : {"step-1", "step-2", "step-3", "step-4", "step-10"})
    std::filesystem::copy(case_path("dcp/fsdp2_w2"), t / ("run/" + std::string(step)),
                          std::filesystem::copy_options::recursive);
  for (const char* step : {"step-2", "step-4"})
    std::filesystem::remove(t / ("run/" + std::string(step) + "/.metadata"));
  std::filesystem::remove(t / "run/step-3/__1_0.distcp");
  std::ofstream(t / "run/latest") << "step-4";
  std::ofstream(t / "run/train.log") << "step 1";
}

Value json_of(std::vector<std::string> words) {
  words.insert(words.end(), {"--format", "json"});
  return parse_json(as_bytes(inspect(words).out));
}

}  // namespace

TEST_CASE("a run says which checkpoint is the newest whole one, and groups why others are not") {
  const TemporaryFolder t;
  make_run(t);
  const CommandResult table = inspect({t / "run"});
  CHECK(table.exit == 0);
  CHECK_THAT(table.out, Contains("5 checkpoints"));
  CHECK_THAT(table.out, Contains("newest whole: step-10 (") && Contains(" ago); 3 damaged\n"));
  CHECK_THAT(table.out, Contains("damaged: step-2, step-4: ") && Contains("damaged: step-3: "));
  CHECK_THAT(table.out, Contains("<- latest") && !Contains("0 B"));
  CHECK(inspect({t / "run", "--strict"}).exit == 1);
  std::filesystem::remove_all(t / "run/step-1");
  std::filesystem::remove_all(t / "run/step-10");
  CHECK_THAT(inspect({t / "run"}).out, Contains("none is whole"));
}

TEST_CASE("what a run's checkpoints weigh is all that lies in their folders") {
  const TemporaryFolder t;
  make_run(t);
  std::ofstream(t / "run/step-1/extra.bin") << std::string(100000, 'x');
  const Value run = json_of({t / "run"});
  CHECK(run.find("newest_whole")->as_string() == "step-10");
  CHECK(run.find("free_bytes")->as_int() > 0);
  const ValueList& rows = run.find("checkpoints")->as_list();
  REQUIRE(rows.size() == 5);
  const auto number = [&](std::size_t row, const char* key) {
    return rows[row].find(key)->as_int();
  };
  CHECK(number(0, "disk_bytes") == number(4, "disk_bytes") + 100000);
  CHECK(number(1, "disk_bytes") > 1000);  // though nothing of it can be read
  CHECK(number(0, "modified") > 1'600'000'000);
}

TEST_CASE("several paths are one table, as a shell writes run/*") {
  const TemporaryFolder t;
  make_run(t);
  std::vector<std::string> paths;
  for (const char* name :
       {"latest", "step-1", "step-10/", "step-2", "step-3", "step-4", "train.log"})
    paths.push_back(t / ("run/" + std::string(name)));
  const CommandResult table = inspect(paths);
  CHECK(table.exit == 0);
  CHECK_THAT(table.out,
             Contains("5 checkpoints") && Contains("newest whole: " + (t / "run/step-10")));
  CHECK_THAT(table.out, Contains("no checkpoints: ") && Contains("train.log"));
  std::vector<std::string> strict = paths;
  strict.push_back("--strict");
  CHECK(inspect(strict).exit == 1);
  const Value run = json_of(paths);
  CHECK(run.find("path")->as_string() == t / "run");
  CHECK(run.find("checkpoints")->as_list().size() == 5);
  CHECK(run.find("others")->as_list().size() == 1);
  // Folders of checkpoints count with what lies in them; one that is there twice is one row.
  CHECK(json_of({t / "run", t / "run/step-1"}).find("checkpoints")->as_list().size() == 5);
  CHECK(inspect({t / "run/step-1", t / "absent"}).exit == 3);
  CHECK(inspect({t / "run/train.log", t / "run/train.log"}).exit == 5);
  CHECK(inspect({t / "run/step-1", t / "run/step-10", "--strict"}).exit == 0);
  CHECK(inspect({"summary", t / "run/step-1", t / "run/step-2", "--explain-path"}).exit == 2);
}

TEST_CASE("flag --globals looks at every one of several paths") {
  const TemporaryFolder t;
  make_run(t);
  std::filesystem::copy(sample("hostile/global_eval.pt"), t / "evil.pt");
  CHECK(inspect({"summary", t / "run/step-1", t / "evil.pt", "--globals"}).exit == 4);
}

}  // namespace run_table_test
