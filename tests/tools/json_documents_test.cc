// JSON output: numbers JSON lacks, ndjson lines, and a validator that does find faults.
#include <catch2/catch.hpp>
#include <limits>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tools/documents/json_report.h"
#include "tools/failure.h"
#include "tools/progress_reporter.h"
#include "tools/render/screen.h"

namespace json_documents_test {

using namespace tessera;
using namespace tessera::tools;
using tessera::testing::parsed;
using tessera::testing::published_schema;
using tessera::testing::schema_violations;

TEST_CASE("non-finite numbers are strings, invalid UTF-8 is escaped") {
  JsonObject object;
  object.add("nan", std::numeric_limits<double>::quiet_NaN());
  object.add("inf", -std::numeric_limits<double>::infinity());
  object.add("text", std::string("a\xff"));
  object.add("absent", std::optional<double>());
  object.add("yes", true);
  object.add("count", std::uint64_t{7});
  CHECK(json_document(object.take()) ==
        "{\"nan\":\"nan\",\"inf\":\"-inf\",\"text\":\"a\\\\xff\",\"absent\":null,\"yes\":true,"
        "\"count\":7}\n");
}

TEST_CASE("ndjson: every line has a type, the last counts those before it") {
  JsonObject item;
  item.add("name", "w");
  JsonObject object;
  object.add("schema", "tessera.ls/1");
  object.add("path", "p");
  object.add("tensors", Value::list({item.take()}));
  object.add("values", Value::dict({{Value::string("lr"), Value::real(0.5)}}));
  constexpr LineField kLines[] = {{"tensors", "tensor"}, {"values", "value"}};
  CHECK(ndjson_document(object.take(), "ls", kLines) ==
        "{\"type\":\"ls\",\"schema\":\"tessera.ls/1\",\"path\":\"p\"}\n"
        "{\"type\":\"tensor\",\"name\":\"w\"}\n"
        "{\"type\":\"value\",\"name\":\"lr\",\"value\":0.5}\n"
        "{\"type\":\"end\",\"count\":3}\n");
}

TEST_CASE(
    "failures have one line for people, a document for programs, and the status of their code") {
  Status status{Code::kCorrupt,
                "data_offsets disagree\n",
                {"m.safetensors", "layers.0.w", {}, 3},
                "fetch it again"};
  CHECK(failure_text("ckpt-reshard", status, 4, OutputFormat::kHuman) ==
        "ckpt-reshard: corrupt: tensor \"layers.0.w\": data_offsets disagree\\n [m.safetensors, "
        "rank 3]\n"
        "hint: fetch it again\n");
  const Value error = parsed(failure_text("ckpt-reshard", status, 4, OutputFormat::kJson));
  CHECK(schema_violations(published_schema("error"), error).empty());
  CHECK(error.find("tensor")->as_string() == "layers.0.w");
  CHECK(error.find("rank")->as_int() == 3);
  CHECK(error.find("exit")->as_int() == 4);
  CHECK(exit_status(Code::kInvalidArgument) == 2);
  CHECK(exit_status(Code::kAlreadyExists) == 2);
  CHECK(exit_status(Code::kOutOfRange) == 2);
  CHECK(exit_status(Code::kNotFound) == 3);
  CHECK(exit_status(Code::kIo) == 3);
  CHECK(exit_status(Code::kCorrupt) == 4);
  CHECK(exit_status(Code::kUnsupported) == 5);
  CHECK(exit_status(Code::kResourceExhausted) == 6);
  CHECK(exit_status(Code::kInternal) == 70);
}

TEST_CASE("words are quoted so that a shell reads them back") {
  CHECK(shell_quoted("a/b-1.pt") == "a/b-1.pt");
  CHECK(shell_quoted("a b") == "'a b'");
  CHECK(shell_quoted("*.w=x") == "'*.w=x'");
  CHECK(shell_quoted("it's") == "'it'\\''s'");
  CHECK(shell_quoted("") == "''");
}

TEST_CASE("progress tells bytes, rate and time left") {
  const ProgressSample sample{1u << 30, 4ull << 30, 512.0 * (1 << 20), 2};
  CHECK(sample.seconds_left() == 6);
  const std::string line = progress_line("reshard", sample);
  CHECK(line.find("25.0 %") != std::string::npos);
  CHECK(line.find("6.00 s left") != std::string::npos);
  CHECK(line.find("MiB/s") != std::string::npos);
  CHECK(progress_bar_line("reshard", sample, 100).find("[") != std::string::npos);
  for (const int width : {20, 40, 80})
    CHECK(display_width(progress_bar_line("reshard", sample, width)) < width);
  CHECK(schema_violations(published_schema("progress"), parsed(progress_json("reshard", sample)))
            .empty());
  CHECK(schema_violations(published_schema("progress"), parsed(progress_json("reshard", {})))
            .empty());
}

TEST_CASE("the schema validator finds what is wrong") {
  const Value schema = published_schema("hash");
  const std::string hex(64, 'a');
  const auto document = [&](const std::string& root, const std::string& shape,
                            const std::string& rest) {
    return parsed("{\"schema\":\"tessera.hash/2\",\"path\":\"p\",\"format\":\"f\",\"root\":\"" +
                  root + "\",\"values_root\":\"" + hex + "\",\"root_v1\":\"" + hex +
                  "\",\"values_root_v1\":\"" + hex +
                  "\",\"bytes\":1,\"not_compared\":0,\"values\":[],\"tensors\":[{\"name\":\"w\","
                  "\"dtype\":\"float32\",\"shape\":" +
                  shape + ",\"sha256\":\"" + hex + "\"}]" + rest + "}");
  };
  CHECK(schema_violations(schema, document(hex, "[1]", ",\"notes\":[]")).empty());
  CHECK(schema_violations(schema, document(hex, "[1]", "")).size() == 1);
  CHECK(schema_violations(schema, document(hex, "[-1]", ",\"notes\":[]")).size() == 1);
  CHECK(schema_violations(schema, document(hex, "[1.5]", ",\"notes\":[]")).size() == 1);
  CHECK(schema_violations(schema, document("xyz", "[1]", ",\"notes\":[]")).size() == 1);
  CHECK(schema_violations(schema, document(hex, "3", ",\"notes\":[{}]")).size() == 6);
  CHECK_THROWS_AS(schema_violations(parsed("{\"maxLength\":3}"), Value()), std::logic_error);
}

}  // namespace json_documents_test
