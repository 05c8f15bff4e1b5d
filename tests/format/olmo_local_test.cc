// What OLMo's local model files say of flat parameters, in the forms of both PyTorch generations, and
// what they may not say.
#include <tessera/base/error.h>
#include <tessera/format/olmo_local.h>
#include <tessera/ops/open.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>

#include "lib/format/olmo_local/flat_handles.h"
#include "tests/support/convert_case.h"

namespace olmo_local_test {

using namespace tessera;
using namespace tessera::testing;
using olmo_local::parameter_runs;
using olmo_local::ParameterRun;

namespace {

Value text(const std::string& v) { return Value::string(v); }
Value number(std::int64_t v) { return Value::integer(v); }
Value tuple(ValueList v) { return Value::list(std::move(v), Value::Kind::kTuple); }

/// _ShardParamInfo, a named tuple.
Value info(ValueList fields) {
  OpaqueObject object;
  object.how = OpaqueObject::How::kNewObj;
  object.module = "torch.distributed.fsdp._flat_param";
  object.name = "_ShardParamInfo";
  object.arguments = tuple(std::move(fields));
  return Value::opaque(std::move(object));
}

/// A shard of 8 elements: the last 4 of "a" [2, 3], 2 of padding, the first 2 of "b" [5].
TorchArchive archive(ValueDict shards) {
  TorchArchive out;
  ArchiveTensor flat;
  flat.shape = Shape{8};
  flat.strides = {1};
  out.tensors.push_back(flat);
  ValueDict handle{{text("flat_param.data"), Value::tensor(0)},
                   {text("flat_param._fqns"), tuple({text("a"), text("b")})},
                   {text("flat_param._shapes"), tuple({Value::size({2, 3}), Value::size({5})})}};
  handle.insert(handle.end(), shards.begin(), shards.end());
  const Value module =
      Value::dict({{text("name"), text("_fsdp_wrapped_module.blocks.0")},
                   {text("handles"), Value::list({Value::dict(std::move(handle))})}});
  out.root = Value::dict({{text("modules"), Value::list({module})}});
  return out;
}

ValueDict infos(ValueList a, ValueList b) {
  return {{text("flat_param._shard_param_infos"), tuple({info(std::move(a)), info(std::move(b))})}};
}

Code code_of(const TorchArchive& archive) {
  try {
    parameter_runs(archive);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

const Value kYes = Value::boolean(true);

}  // namespace

TEST_CASE("flat parameters of OLMo say where each rank's elements belong") {
  const std::vector<ParameterRun> runs =
      parameter_runs(archive(infos({kYes, number(0), number(4), number(2), number(5)},
                                   {kYes, number(6), number(2), number(0), number(1)})));
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].fqn == "blocks.0.a");
  CHECK(runs[0].spec.shape == Shape{2, 3});
  CHECK((runs[0].begin == 2 && runs[0].end == 6 && runs[0].first_element == 0));
  CHECK((runs[1].begin == 0 && runs[1].end == 2 && runs[1].first_element == 6));
  // A parameter of which the rank has nothing.
  const Value none;
  const std::vector<ParameterRun> some =
      parameter_runs(archive(infos({Value::boolean(false), none, none, none, none},
                                   {kYes, number(3), number(5), number(0), number(4)})));
  CHECK(some[0].begin == some[0].end);
  CHECK(some[1].end == 5);
}

TEST_CASE("flat parameters of PyTorch before 2.1 are read by indices and offsets") {
  const std::vector<ParameterRun> runs = parameter_runs(
      archive({{text("flat_param._shard_indices"), tuple({number(0), number(1)})},
               {text("flat_param._shard_param_offsets"),
                tuple({tuple({number(2), number(5)}), tuple({number(0), number(3)})})}}));
  REQUIRE(runs.size() == 2);
  CHECK((runs[0].begin == 2 && runs[0].end == 6 && runs[0].first_element == 0));
  CHECK((runs[1].begin == 0 && runs[1].end == 4 && runs[1].first_element == 4));
  // The second parameter alone.
  const std::vector<ParameterRun> second = parameter_runs(
      archive({{text("flat_param._shard_indices"), tuple({number(1), number(1)})},
               {text("flat_param._shard_param_offsets"), tuple({tuple({number(0), number(4)})})}}));
  CHECK(second[0].begin == second[0].end);
  CHECK((second[1].end == 5 && second[1].first_element == 0));
}

TEST_CASE("flat parameters of OLMo that contradict themselves are refused") {
  const auto whole = [](std::int64_t at, std::int64_t count, std::int64_t first,
                        std::int64_t last) {
    return code_of(archive(infos({kYes, number(at), number(count), number(first), number(last)},
                                 {kYes, number(6), number(2), number(0), number(1)})));
  };
  CHECK(whole(0, 4, 2, 5) == Code::kOk);
  CHECK(whole(0, 4, 3, 6) == Code::kCorrupt);  // past the parameter
  CHECK(whole(5, 4, 2, 5) == Code::kCorrupt);  // past the shard
  CHECK(whole(0, 3, 2, 5) == Code::kCorrupt);  // another count
  CHECK(whole(-1, 4, 2, 5) == Code::kCorrupt);
  CHECK(code_of(archive({{text("flat_param._shard_param_infos"), tuple({info({kYes})})}})) ==
        Code::kCorrupt);
  CHECK(code_of(archive({{text("flat_param._shard_indices"), tuple({number(2), number(2)})},
                         {text("flat_param._shard_param_offsets"),
                          tuple({tuple({number(0), number(1)})})}})) == Code::kCorrupt);
  CHECK(code_of(archive({})) == Code::kCorrupt);
}

TEST_CASE("an OLMo checkpoint without one rank's file names it, and is not written") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "olmo-local/fsdp1_w2");
  CHECK(open_checkpoint(fs, source).driver->id() == "olmo-local");
  ConvertOptions there = convert_options(source, "/out", 1, "olmo-local");
  CHECK(status_of(fs, there).code == Code::kUnsupported);
  CHECK(convert(fs, convert_options(source, "/dcp", 2, "torch-dcp")).published);
  CHECK(content_at(fs, "/dcp").tensors == content_at(fs, source).tensors);
  fs.remove_file("/source/model/rank1.pt");
  try {
    open_checkpoint(fs, source);
    FAIL("opened");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    CHECK(error.status().message.find("model/rank1.pt") != std::string::npos);
  }
}

}  // namespace olmo_local_test
