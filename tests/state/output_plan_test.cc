#include <tessera/base/error.h>
#include <tessera/state/output_plan.h>

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

namespace output_plan_test {

using namespace tessera;

namespace {

class Zeros : public OutputRenderer {
 public:
  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc&) const override {
    return Bytes(plan.segments[segment].length);
  }
};

Manifest source() {
  Manifest manifest;
  manifest.tensors.push_back({.name = "w", .spec = {DType::kFloat32, {4, 3}}});
  manifest.tensors.push_back({.name = "packed", .spec = {DType::kFloat4, {6}}});
  return manifest;
}

/// Two files: a header and rows 0-2; row 3 as a flat range, and a trailer that needs its CRC.
OutputPlan good_plan() {
  OutputPlan plan;
  plan.format = "test";
  plan.chunks = {Chunk::whole_of({{0, 0}, {3, 3}}), Chunk{{{0, 0}, {4, 3}}, 9, 12}};
  using Kind = Segment::Kind;
  plan.segments = {{Kind::kLiteral, 0, 0, 10, 0},
                   {Kind::kTensor, 0, 10, 36, 0},
                   {Kind::kTensor, 0, 0, 12, 1},
                   {Kind::kDeferred, 0, 12, 4, 0}};
  plan.files = {{"a/one.bin", 46, 0, 2}, {"two.bin", 16, 2, 2}};
  plan.renderer = std::make_shared<Zeros>();
  return plan;
}

void check_refused(const char* what, const std::function<void(OutputPlan&)>& damage) {
  INFO(what);
  OutputPlan plan = good_plan();
  damage(plan);
  try {
    plan.check(source());
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInternal);
  }
}

}  // namespace

TEST_CASE("a plan whose segments tile its files is good") {
  good_plan().check(source());
  CHECK(good_plan().total_bytes() == 62);
  OutputPlan empty;
  empty.check(source());
  empty.files = {{"empty.bin", 0, 0, 0}};
  empty.check(source());
}

TEST_CASE("one file may be the whole result") {
  OutputPlan plan = good_plan();
  plan.single_file = true;
  CHECK_THROWS_AS(plan.check(source()), Error);
  plan.files = {{"", 46, 0, 2}};
  plan.segments.resize(2);
  plan.check(source());
}

TEST_CASE("a plan with any inconsistency is refused") {
  check_refused("gap", [](OutputPlan& p) { p.segments[1].offset = 11; });
  check_refused("overlap", [](OutputPlan& p) { p.segments[1].offset = 9; });
  check_refused("size above the segments", [](OutputPlan& p) { p.files[0].size_bytes = 47; });
  check_refused("size below the segments", [](OutputPlan& p) { p.files[1].size_bytes = 15; });
  check_refused("segment of no file", [](OutputPlan& p) {
    p.segments.push_back({Segment::Kind::kLiteral, 0, 0, 1, 0});
  });
  check_refused("too many segments", [](OutputPlan& p) { p.files[1].segment_count = 3; });
  check_refused("segment count wraps", [](OutputPlan& p) { p.files[1].segment_count = ~0ull; });
  check_refused("files share segments", [](OutputPlan& p) { p.files[1].first_segment = 1; });
  check_refused("tensor bytes", [](OutputPlan& p) { p.segments[1].length = 35; });
  check_refused("unknown tensor", [](OutputPlan& p) { p.segments[1].tensor = 2; });
  check_refused("unknown chunk", [](OutputPlan& p) { p.segments[1].payload = 2; });
  check_refused("chunk outside", [](OutputPlan& p) {
    p.chunks = {Chunk::whole_of({{2, 0}, {3, 3}}), p.chunks[1].chunk()};
  });
  check_refused("chunk of another rank", [](OutputPlan& p) {
    p.chunks = {Chunk::whole_of({{0}, {9}}), p.chunks[1].chunk()};
  });
  check_refused("range outside its box", [](OutputPlan& p) {
    p.chunks = {p.chunks[0].chunk(), Chunk{{{0, 0}, {4, 3}}, 10, 13}};
  });
  check_refused("nobody renders", [](OutputPlan& p) { p.renderer = nullptr; });
  check_refused("one name twice", [](OutputPlan& p) { p.files[1].path = "a/one.bin"; });
  check_refused("absolute name", [](OutputPlan& p) { p.files[1].path = "/two.bin"; });
  check_refused("name that climbs", [](OutputPlan& p) { p.files[1].path = "a/../../two.bin"; });
  check_refused("no name", [](OutputPlan& p) { p.files[1].path = ""; });
  check_refused("bytes above 2^64", [](OutputPlan& p) { p.segments[3].length = ~0ull; });
}

TEST_CASE("tensors of sub-byte elements are not cut") {
  OutputPlan plan;
  plan.chunks = {Chunk::whole_of({{0}, {6}})};
  plan.segments = {{Segment::Kind::kTensor, 1, 0, 3, 0}};
  plan.files = {{"x", 3, 0, 1}};
  plan.check(source());
  plan.chunks = {Chunk::whole_of({{0}, {2}})};
  plan.segments[0].length = 1;
  plan.files[0].size_bytes = 1;
  CHECK_THROWS_AS(plan.check(source()), Error);
}

}  // namespace output_plan_test
