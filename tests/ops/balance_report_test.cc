// Every conversion ends with an account, and what was asked for is written or refused.
#include <tessera/base/error.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/open_case.h"
#include "tests/support/rank_archive.h"
#include "tests/support/verify_case.h"
#include "tests/support/written_checkpoint.h"

namespace balance_report_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A quantized weight as its library pickles it: an object around two tensors.
Value quantized(RankArchive& archive) {
  OpaqueObject object;
  object.how = OpaqueObject::How::kNewObj;
  object.module = "quant.tensors";
  object.name = "Int8Tensor";
  object.arguments = Value::list({}, Value::Kind::kTuple);
  object.state = dict(
      {{"data", archive.tensor({2, 2}, {1, 2, 3, 4})}, {"scale", archive.tensor({2}, {1, 2})}});
  object.has_state = true;
  return Value::opaque(std::move(object));
}

std::string save(MemoryFileSystem& fs, const RankArchive& archive, const Value& root) {
  fs.write_file("/model.pt", archive.render(root));
  return "/model.pt";
}

const LeftOutGroup* group_of(const Balance& balance, const std::string& reason) {
  for (const LeftOutGroup& group : balance.left_out())
    if (has(group.reason, reason)) return &group;
  return nullptr;
}

}  // namespace

TEST_CASE("what a selection leaves out stands in the report and in the seal") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  const std::size_t all = content_at(fs, source).tensors.size();
  ConvertOptions options = convert_options(source, "/out", 2);
  options.selection.only = Part::kModel;
  const Balance balance = convert(fs, options).balance;
  balance.check();
  CHECK(balance.source().tensors == static_cast<std::int64_t>(all));
  CHECK(balance.written().tensors ==
        static_cast<std::int64_t>(content_at(fs, "/out").tensors.size()));
  const LeftOutGroup* optim = group_of(balance, "--only model");
  REQUIRE(optim != nullptr);
  CHECK(optim->tensors.size() == all - static_cast<std::size_t>(balance.written().tensors));
  const auto seal = read_seal(*fs.open_directory("/out"), "");
  REQUIRE((seal && seal->balance));
  CHECK(canonical_json(encode_balance(*seal->balance)) == canonical_json(encode_balance(balance)));
}

TEST_CASE("a conversion of everything leaves nothing out") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  const Balance balance = convert(fs, convert_options(source, "/out", 3)).balance;
  CHECK(balance.left_out().empty());
  CHECK(balance.source() == balance.written());
}

TEST_CASE("to hf leaves out the rest of the state as asked, and says so") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  const ConvertReport report = convert(fs, convert_options(source, "/out", std::nullopt, "hf"));
  const LeftOutGroup* rest = group_of(report.balance, "--to hf");
  REQUIRE(rest != nullptr);
  CHECK(rest->count.tensors > 0);
  CHECK(report.dropped.empty());
}

TEST_CASE("weights that are objects are refused by to hf, at the top and below a root") {
  for (const bool rooted : {false, true}) {
    MemoryFileSystem fs;
    RankArchive archive;
    const Value weights =
        dict({{"0.weight", quantized(archive)}, {"0.bias", archive.tensor({2}, {0, 1})}});
    const std::string source =
        save(fs, archive, rooted ? dict({{"model", weights}, {"epoch", number(3)}}) : weights);
    ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
    const Status refused = status_of(fs, options);
    CHECK(refused.code == Code::kUnsupported);
    CHECK(has(refused.message, "0.weight"));
    CHECK(has(refused.message, "Int8Tensor"));
    CHECK_FALSE(fs.stat("/out"));

    options.target.opaque = KeepPolicy::kDrop;  // a request like any other
    const Balance balance = convert(fs, options).balance;
    CHECK(balance.written().tensors == 1);
    std::int64_t inside = 0;
    for (const LeftOutGroup& group : balance.left_out()) inside += group.count.inner_tensors;
    CHECK(inside == 2);
  }
}

TEST_CASE("weights in tuples and lists, and arrays of numpy's, are refused by to hf as well") {
  RankArchive archive;
  const auto weight = [&] { return archive.tensor({2}, {0, 1}); };
  const Value array = [] {
    OpaqueObject made;
    made.how = OpaqueObject::How::kReduce;
    made.module = "numpy._core.multiarray";
    made.name = "_reconstruct";
    OpaqueObject of;
    of.module = "numpy";
    of.name = "ndarray";
    made.arguments = Value::list(
        {Value::opaque(of), Value::list({number(0)}, Value::Kind::kTuple), Value::bytes("b")},
        Value::Kind::kTuple);
    return Value::opaque(made);
  }();
  // PyTorch's quantize_dynamic() keeps its weights in a tuple.
  const Value tuple = Value::list({weight(), Value()}, Value::Kind::kTuple);
  const Value objects = Value::list({quantized(archive)});
  const std::pair<const char*, Value> cases[] = {{"a tuple, with 1 tensor inside", tuple},
                                                 {"a list, with 2 tensors inside", objects},
                                                 {"an object of class numpy.ndarray: ", array}};
  for (const auto& [what, value] : cases) {
    for (const bool rooted : {false, true}) {
      MemoryFileSystem fs;
      const Value weights = dict({{"0.bias", weight()}, {"0.weight", value}});
      const std::string source = save(fs, archive, rooted ? dict({{"model", weights}}) : weights);
      const Status refused = status_of(fs, convert_options(source, "/out", std::nullopt, "hf"));
      CAPTURE(what, rooted, refused.message);
      CHECK(refused.code == Code::kUnsupported);
      CHECK(has(refused.message, "0.weight"));
      CHECK(has(refused.message, what));
    }
  }
}

TEST_CASE("a file without a model has none for to hf, which is no matter of a selection") {
  MemoryFileSystem fs;
  RankArchive archive;
  const Value moments = dict({{"exp_avg", archive.tensor({2}, {0, 1})}});
  const Value group = dict({{"lr", number(1)}, {"params", Value::list({number(0)})}});
  const std::string source = save(
      fs, archive,
      dict({{"state", dict({{"a.weight", moments}})}, {"param_groups", Value::list({group})}}));
  const Status refused = status_of(fs, convert_options(source, "/out", std::nullopt, "hf"));
  CHECK(refused.code == Code::kUnsupported);
  CHECK(has(refused.message, "optimizer's state alone"));
}

TEST_CASE("copies of a model that equal it do not stop to hf") {
  MemoryFileSystem fs;
  RankArchive archive;
  const Value weights =
      dict({{"0.weight", archive.tensor({2}, {0, 1})}, {"0.bias", archive.tensor({1}, {2})}});
  const Value ordered = Value::ordered_dict(weights.as_dict(), Value());
  const std::string source =
      save(fs, archive, dict({{"actor", ordered}, {"critic", ordered}, {"epoch", number(3)}}));
  const ConvertReport report = convert(fs, convert_options(source, "/out", std::nullopt, "hf"));
  CHECK(report.published);
  CHECK(report.dropped.size() == 2);
}

TEST_CASE("a model in which nothing but objects holds weights is refused with the reason") {
  MemoryFileSystem fs;
  RankArchive archive;
  const std::string source =
      save(fs, archive, dict({{"model", quantized(archive)}, {"epoch", number(3)}}));
  const Status refused = status_of(fs, convert_options(source, "/out", std::nullopt, "hf"));
  CHECK(refused.code == Code::kUnsupported);
  CHECK(has(refused.message, "\"model\" is no plain tensor"));
}

TEST_CASE("one rank's distributed tensors are no model by themselves") {
  MemoryFileSystem fs;
  load_sample(fs, "torchsave/dtensor_rankfiles_w2");
  const Status refused =
      status_of(fs, convert_options("/source/rank0.pt", "/out", std::nullopt, "hf"));
  CHECK(refused.code == Code::kUnsupported);
  CHECK(has(refused.message, "DTensor"));
}

TEST_CASE("a selection of the model keeps its objects") {
  MemoryFileSystem fs;
  RankArchive archive;
  const std::string source = save(fs, archive,
                                  dict({{"0.weight", quantized(archive)},
                                        {"0.bias", archive.tensor({2}, {0, 1})},
                                        {"epoch", number(3)}}));
  ConvertOptions options = convert_options(source, "/out", 1, "torch-dcp");
  options.selection.only = Part::kModel;
  const Balance balance = convert(fs, options).balance;
  CHECK(balance.written().inner_tensors == 2);
  CHECK(balance.left_out().at(0).values == std::vector<std::string>{"epoch"});
}

TEST_CASE("a dict of weights that is kept as one value is weights") {
  StateDict state;
  state.entries.push_back({"model", {key_item("model")}, dict({{"0.weight", Value::tensor(0)}})});
  state.entries.push_back({"step", {key_item("step")}, Value::tensor(1)});
  const Roles roles = find_roles(state);
  CHECK(roles.entries[0].role == Role::kModel);
}

TEST_CASE("errors that the user asked for hold for to hf") {
  MemoryFileSystem fs;
  RankArchive archive;
  const std::string source = save(fs, archive,
                                  dict({{"0.weight", archive.tensor({2}, {0, 1})},
                                        {"args", argument_namespace({{"lr", number(1)}})},
                                        {"epoch", number(3)}}));
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
  SECTION("objects") {
    options.target.opaque = KeepPolicy::kError;
    CHECK(has(status_of(fs, options).message, "argparse.Namespace"));
  }
  SECTION("values") {
    options.target.values = KeepPolicy::kError;
    options.selection.exclude = {"args"};
    CHECK(has(status_of(fs, options).message, "\"epoch\" is no tensor"));
    options.selection.exclude = {"args", "epoch"};
    CHECK(convert(fs, options).published);
  }
}

TEST_CASE("what a salvage lost is remembered by the result and by what is made of it") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  edit(fs, "/source/__1_0.distcp", [](Bytes& bytes) { bytes.resize(bytes.size() / 2); });
  ConvertOptions options = convert_options("/source", "/out", 1);
  options.salvage = true;
  const ConvertReport report = convert(fs, options);
  REQUIRE_FALSE(report.lost.empty());
  CHECK(group_of(report.balance, "lost") != nullptr);

  convert(fs, convert_options("/out", "/again", 2));
  for (const char* path : {"/out", "/again"}) {
    CAPTURE(path);
    CHECK(summarize(open_checkpoint(fs, path)).lost.size() == report.lost.size());
    const VerifyReport verified = verify(fs, path);
    CHECK(verified.ok);
    const Note* lost = find(verified, "CK053", "", report.lost[0].name);
    REQUIRE(lost != nullptr);
    CHECK(lost->severity == Severity::kWarning);
  }
}

TEST_CASE("verify says what it compared") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  SECTION("everything") {
    ConvertOptions options = convert_options(source, "/out", 3);
    options.verify = true;
    const VerifyScope scope = convert(fs, options).verify_scope;
    CHECK(scope.compared == std::vector<std::string>{"content", "steps", "groups"});
    CHECK(scope.not_compared.empty());
  }
  SECTION("the model alone, cast") {
    ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
    options.verify = true;
    options.transform.dtype = DType::kBFloat16;
    const VerifyScope scope = convert(fs, options).verify_scope;
    CHECK(scope.compared == std::vector<std::string>{"content"});
    REQUIRE(scope.not_compared.size() >= 2);
    CHECK(has(scope.not_compared[0], "left out"));
    CHECK(has(scope.not_compared.back(), "compared as cast"));
  }
}

TEST_CASE("to hf writes the names of before torch.compile") {
  MemoryFileSystem fs;
  RankArchive archive;
  const std::string source =
      save(fs, archive,
           dict({{"_orig_mod.0._orig_mod.weight", archive.tensor({2}, {0, 1})},
                 {"_orig_mod.0.bias", archive.tensor({2}, {2, 3})}}));
  const ConvertReport report = convert(fs, convert_options(source, "/out", std::nullopt, "hf"));
  const OpenedContent written = content_at(fs, "/out");
  CHECK(written.tensors.contains("0.weight"));
  CHECK(written.tensors.contains("0.bias"));
  CHECK(std::ranges::count(report.notes, "NAMES", note_code<Note>) == 1);
  ConvertOptions other = convert_options(source, "/dcp", 1, "torch-dcp");
  convert(fs, other);  // only the preset cleans names
  CHECK(content_at(fs, "/dcp").tensors.contains("_orig_mod.0.bias"));
}

TEST_CASE("names that would become one keep what torch.compile added, with a warning") {
  MemoryFileSystem fs;
  RankArchive archive;
  const std::string source = save(fs, archive,
                                  dict({{"_orig_mod.weight", archive.tensor({2}, {0, 1})},
                                        {"weight", archive.tensor({2}, {2, 3})}}));
  const ConvertReport report = convert(fs, convert_options(source, "/out", std::nullopt, "hf"));
  CHECK(content_at(fs, "/out").tensors.size() == 2);
  const auto note = std::ranges::find(report.notes, "NAMES", note_code<Note>);
  REQUIRE(note != report.notes.end());
  CHECK(note->severity == Severity::kWarning);
}

TEST_CASE("a copied config.json names the type that the weights have") {
  MemoryFileSystem fs;
  RankArchive archive;
  save(fs, archive, dict({{"0.weight", archive.tensor({2}, {0, 1})}}));
  convert(fs, convert_options("/model.pt", "/model/model.safetensors", std::nullopt));
  put(fs, "/model/config.json",
      "{\"torch_dtype\": \"float32\", \"x\": 1.50,\n \"text\": {\"dtype\" : \"float32\"}}");
  ConvertOptions options = convert_options("/model", "/out", std::nullopt, "hf");
  options.copy_assets = true;
  options.transform.dtype = DType::kBFloat16;
  const ConvertReport report = convert(fs, options);
  CHECK(as_text(fs.read_file("/out/config.json")) ==
        "{\"torch_dtype\": \"bfloat16\", \"x\": 1.50,\n \"text\": {\"dtype\" : \"bfloat16\"}}");
  const auto note = std::ranges::find(report.notes, "config.json", &Note::file);
  REQUIRE(note != report.notes.end());
  CHECK(has(note->message, "float32 -> bfloat16"));
  CHECK(verify(fs, "/out").ok);
}

TEST_CASE("a configuration that lies beside latest is found, one of the named step comes first") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "deepspeed/zero2_w2");
  const std::string step(as_text(fs.read_file(source + "/latest")));
  put(fs, source + "/config.json", "{\"of\": \"the run\"}");
  const auto config = [&](const std::string& to) {
    ConvertOptions options = convert_options(source, to, std::nullopt, "hf");
    options.copy_assets = true;
    const ConvertReport report = convert(fs, options);
    CHECK(report.assets == std::vector<std::string>{"config.json"});
    return std::string(as_text(fs.read_file(to + "/config.json")));
  };
  CHECK(config("/out") == "{\"of\": \"the run\"}");
  put(fs, source + "/" + step + "/config.json", "{\"of\": \"the step\"}");
  CHECK(config("/again") == "{\"of\": \"the step\"}");
}

TEST_CASE("folders above DST are made, and not by a dry run") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  ConvertOptions options = convert_options(source, "/new/deep/out.safetensors", std::nullopt);
  options.dry_run = true;
  convert(fs, options);
  CHECK_FALSE(fs.stat("/new"));
  options.dry_run = false;
  CHECK(convert(fs, options).published);
  CHECK(fs.stat("/new/deep/out.safetensors"));
  options.destination = "/absent/../out";
  CHECK(status_of(fs, options).code == Code::kInvalidArgument);
}

}  // namespace balance_report_test
