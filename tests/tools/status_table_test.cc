// Exit statuses of the command contract, and that every failure leaves one clear line on stderr and
// nothing on stdout.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"

namespace status_table_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

namespace fs = std::filesystem;

const char* const kDcp = "dcp/fsdp2_w4";

std::string last_line(const std::string& text) {
  const std::string body = text.substr(0, text.find_last_not_of('\n') + 1);
  return body.substr(body.rfind('\n') == std::string::npos ? 0 : body.rfind('\n') + 1);
}

/// One failure, asked for in all three forms.
void check_failure(const std::function<CommandResult(std::vector<std::string>)>& command,
                   const std::vector<std::string>& words, int exit, const std::string& mentions) {
  INFO(words[0] << " " << (words.size() > 1 ? words[1] : ""));
  const CommandResult human = command(words);
  CHECK(human.exit == exit);
  CHECK(human.out.empty());
  CHECK(human.err.find(mentions) != std::string::npos);
  CHECK(human.err.find('\x1b') == std::string::npos);
  INFO(human.err);
  for (const std::string form : {"json", "ndjson"}) {
    std::vector<std::string> asked = words;
    asked.insert(asked.end(), {"--format", form});
    const CommandResult json = command(asked);
    CHECK(json.exit == exit);
    CHECK(json.out.empty());
    const Value error = parsed(last_line(json.err));
    CHECK(schema_violations(published_schema("error"), error).empty());
    CHECK(error.find("exit")->as_int() == exit);
    CHECK_FALSE(error.find("message")->as_string().empty());
  }
}

void inspect_fails(const std::vector<std::string>& words, int exit, const std::string& mentions) {
  check_failure([](std::vector<std::string> w) { return inspect(std::move(w)); }, words, exit,
                mentions);
}
void reshard_fails(const std::vector<std::string>& words, int exit, const std::string& mentions) {
  check_failure([](std::vector<std::string> w) { return reshard(std::move(w)); }, words, exit,
                mentions);
}
void convert_fails(const std::vector<std::string>& words, int exit, const std::string& mentions) {
  check_failure([](std::vector<std::string> w) { return convert(std::move(w)); }, words, exit,
                mentions);
}

}  // namespace

TEST_CASE("usage is exit 2") {
  inspect_fails({"sumary", case_path(kDcp)}, 2, "summary");
  inspect_fails({"ls", case_path(kDcp), "--fromat", "x"}, 2, "--from");
  inspect_fails({"ls", case_path(kDcp), "--include", "matches.nothing.*"}, 2, "matches.nothing.*");
  inspect_fails({"ls", case_path(kDcp), "--exclude", "matches.nothing.*"}, 2, "matches.nothing.*");
  inspect_fails({"ls", case_path(kDcp), "--root", "modle"}, 2, "modle");
  inspect_fails({"show", case_path(kDcp), "model.head.weigth"}, 2, "model.head.weight");
  inspect_fails({"show", case_path(kDcp), "model.head.weight", "--slice", "0:4:2"}, 2, "");
  inspect_fails({"diff", case_path(kDcp), case_path(kDcp), "--as", "bfloat17"}, 2, "bfloat16");
  const TemporaryFolder t;
  reshard_fails({case_path(kDcp), t / "o"}, 2, "--world-size");
  reshard_fails({case_path(kDcp), t / "o", "--world-size", "2", "--mesh", "dp=2"}, 2, "--mesh");
  reshard_fails({case_path(kDcp), t / "o", "--mesh", "dp=2,dp=3"}, 2, "dp");
  reshard_fails({case_path(kDcp), t / "o", "--mesh", "dp=2", "--placements", "*=shard(0),shard(1)"},
                2, "--placements");
  reshard_fails({case_path(kDcp), t / "o", "--world-size", "2", "--placements", "*=shard(0)"}, 2,
                "--mesh");
  convert_fails({case_path(kDcp), t / "o"}, 2, "--to");
  convert_fails({case_path(kDcp), t / "o.pt", "--map", "/dev/zero"}, 2, "larger than 64 MiB");
  convert_fails({case_path(kDcp), t / "o.pt", "--map", "/dev"}, 2, "is a folder");
  inspect_fails({"ls", case_path(kDcp), "--root", "model.head.weight"}, 2,
                "is a tensor, not a subtree");
  convert_fails({case_path(kDcp), t / "o", "--to", "safetensor"}, 2, "safetensors");
  CHECK(t.names().empty());
}

TEST_CASE("DST: existing, the source itself, or one inside the other is exit 2") {
  const TemporaryFolder t;
  fs::copy(case_path(kDcp), t / "src", fs::copy_options::recursive);
  fs::create_directory(t / "there");
  std::ofstream(t / "there.safetensors") << "old";
  reshard_fails({t / "src", t / "there", "--world-size", "2"}, 2, "there");
  convert_fails({t / "src", t / "there.safetensors"}, 2, "there.safetensors");
  for (const std::string flag : {"", "--force"}) {
    std::vector<std::string> same{t / "src", t / "src", "--world-size", "2"};
    std::vector<std::string> inside{t / "src", t / "src/new", "--world-size", "2"};
    std::vector<std::string> around{t / "src", t.path(), "--world-size", "2"};
    std::vector<std::string> dots{t / "src", t / "there/../src", "--world-size", "2"};
    for (auto* words : {&same, &inside, &around, &dots}) {
      if (!flag.empty()) words->push_back(flag);
      reshard_fails(*words, 2, "");
    }
  }
  CHECK(t.names() == std::vector<std::string>{"src", "there", "there.safetensors"});
  CHECK(fs::file_size(t / "there.safetensors") == 3);
}

TEST_CASE("PATH not found and several checkpoints below it are exit 3") {
  inspect_fails({"/nonexistent/checkpoint"}, 3, "/nonexistent/checkpoint");
  inspect_fails({"ls", "./nothing.here"}, 3, "nothing.here");
  const TemporaryFolder t;
  inspect_fails({"ls", t.path()}, 3, "");
  fs::copy(case_path(kDcp), t / "step-1", fs::copy_options::recursive);
  fs::copy(case_path(kDcp), t / "step-2", fs::copy_options::recursive);
  inspect_fails({"ls", t.path()}, 3, "step-2");
  inspect_fails({"hash", t.path()}, 3, "step-1");
  const TemporaryFolder out;
  reshard_fails({"/nonexistent/checkpoint", out / "o", "--world-size", "2"}, 3,
                "/nonexistent/checkpoint");
  convert_fails({"/nonexistent/checkpoint", out / "o.pt"}, 3, "/nonexistent/checkpoint");
  CHECK(out.names().empty());
  convert_fails({case_path(kDcp), t / "no/../o.pt"}, 2, "leads out of a folder");
  convert_fails({case_path(kDcp), "/sys/o.pt"}, 3, "cannot write in /sys");
}

TEST_CASE("corrupt input is exit 4 and names the file") {
  inspect_fails({"ls", sample("hostile/st_short.safetensors")}, 4, "st_short.safetensors");
  inspect_fails({"ls", sample("hostile/global_eval.pt")}, 4, "eval");
  inspect_fails({"summary", sample("hostile/reduce_os_system.pt")}, 4, "system");
  inspect_fails({"hash", sample("hostile/dcp_truncated_shard")}, 4, "distcp");
  inspect_fails({"ls", sample("hostile/index_missing_shard")}, 4, "");
}

TEST_CASE("URLs, unknown targets and formats of one rank for many are exit 5") {
  inspect_fails({"s3://bucket/run/step-1000"}, 5, "aws");
  inspect_fails({"ls", "gs://bucket/x"}, 5, "gs://bucket/x");
  const TemporaryFolder t;
  reshard_fails({"s3://bucket/x", t / "o", "--world-size", "2"}, 5, "s3://bucket/x");
  convert_fails({case_path(kDcp), "s3://bucket/x.pt"}, 5, "s3://bucket/x.pt");
  convert_fails({case_path(kDcp), t / "o.pt", "--to", "torch-save", "--world-size", "2"}, 5,
                "torch-dcp");
  convert_fails({case_path(kDcp), t / "o", "--to", "torchsnapshot"}, 5, "is read, not written");
  inspect_fails({"ls", case_path("torchsave/torchscript")}, 5, "");
  CHECK(t.names().empty());
  CHECK_FALSE(fs::exists("s3:"));
}

TEST_CASE("a negative check is exit 1 and its report is on stdout") {
  const CommandResult verify =
      inspect({"verify", sample("hostile/bit_flip_crc.pt"), "--format", "json"});
  CHECK(verify.exit == 1);
  const Value document = parsed(verify.out);
  CHECK_FALSE(document.find("ok")->as_bool());
  CHECK_FALSE(document.find("findings")->as_list().empty());
  const CommandResult diff = inspect({"diff", case_path("dcp/fsdp2_w4"),
                                      case_path("dcp/fsdp2_w2_model_only"), "--format", "json"});
  CHECK(diff.exit == 1);
  CHECK_FALSE(parsed(diff.out).find("equal")->as_bool());
  const CommandResult quiet =
      inspect({"diff", case_path("dcp/fsdp2_w4"), case_path("dcp/fsdp2_w2_model_only"), "-q"});
  CHECK(quiet.exit == 1);
  CHECK((quiet.out + quiet.err).empty());
}

TEST_CASE("summary --globals lists what is denied, then is exit 4") {
  for (const std::string name :
       {"hostile/reduce_os_system.pt", "hostile/legacy_reduce_os_system.pt",
        "hostile/global_eval.pt", "hostile/dcp_reduce"}) {
    INFO(name);
    const CommandResult json = inspect({"summary", sample(name), "--globals", "--format", "json"});
    CHECK(json.exit == 4);
    const Value document = parsed(json.out);
    CHECK(schema_violations(published_schema("summary"), document).empty());
    const ValueList& globals = document.find("globals")->as_list();
    REQUIRE_FALSE(globals.empty());
    CHECK(globals[0].find("verdict")->as_string() == "denied");
    CHECK(parsed(last_line(json.err)).find("exit")->as_int() == 4);
    const CommandResult human = inspect({"summary", sample(name), "--globals"});
    CHECK(human.exit == 4);
    CHECK(human.out.find("denied") != std::string::npos);
    CHECK(inspect({"summary", sample(name)}).exit == 4);
  }
  // A class we do not know is opaque: listed, not refused.
  const CommandResult opaque =
      inspect({"summary", case_path("torchsave/whole_module"), "--globals"});
  CHECK(opaque.exit == 0);
  CHECK(opaque.out.find("torch.nn.modules") != std::string::npos);
  CHECK(inspect({"summary", case_path("torchsave/adamw_zip"), "--globals"}).exit == 0);
}

TEST_CASE("success is exit 0") {
  CHECK(inspect({}).exit == 0);
  CHECK(inspect({"--help"}).exit == 0);
  CHECK(inspect({"--version"}).exit == 0);
  CHECK(inspect({"diff", case_path(kDcp), case_path(kDcp)}).exit == 0);
  CHECK(inspect({"verify", case_path(kDcp), case_path("dcp/fsdp2_w2")}).exit == 0);
}

}  // namespace status_table_test
