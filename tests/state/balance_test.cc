// The account of what is written: source + restated = written + left out, or kInternal.
#include <tessera/base/error.h>
#include <tessera/state/balance.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>
#include <string>

namespace balance_test {

using namespace tessera;

namespace {

/// Four float32 tensors of 4, 8, 12 and 16 bytes, and a value that holds the last of them.
Manifest four_tensors() {
  Manifest manifest;
  for (std::uint32_t i = 0; i < 4; ++i) {
    StoredTensor tensor;
    tensor.name = "t" + std::to_string(i);
    tensor.spec = {DType::kFloat32, Shape{i + 1}};
    tensor.embedded = i == 3;
    const Value value =
        i == 3 ? Value::list({Value::tensor(i), Value::integer(1)}, Value::Kind::kTuple)
               : Value::tensor(i);
    manifest.state.entries.push_back({tensor.name, {key_item(tensor.name)}, value});
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

/// A plan that stores these tensors.
OutputPlan plan_of(std::vector<std::uint32_t> tensors) {
  OutputPlan plan;
  for (const std::uint32_t tensor : tensors) {
    Segment segment;
    segment.kind = Segment::Kind::kTensor;
    segment.tensor = tensor;
    plan.segments.push_back(segment);
  }
  return plan;
}

template <class Work>
Status status_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace

TEST_CASE("what is left out stands under its reason, and the rest is written") {
  Manifest manifest = four_tensors();
  Balance balance;
  balance.open(manifest);
  CHECK(balance.source() == StateCount{3, 1, 1, 40});
  keep_entries(manifest, {true, false, true, false});
  balance.leave_out(manifest, "--exclude");
  balance.close(manifest, plan_of({0, 1}));
  CHECK(balance.written() == StateCount{2, 0, 0, 16});
  REQUIRE(balance.left_out().size() == 1);
  const LeftOutGroup& group = balance.left_out()[0];
  CHECK(group.reason == "--exclude");
  CHECK(group.count == StateCount{1, 1, 1, 24});
  CHECK(group.tensors == std::vector<std::string>{"t1"});
  CHECK(group.values == std::vector<std::string>{"t3"});
}

TEST_CASE("a selection made before the account was opened is the source's as well") {
  Manifest manifest = four_tensors();
  keep_entries(manifest, {true, true, true, false});
  for (LeftOut& entry : manifest.left_out) entry.reason = "--only model";
  Balance balance;
  balance.open(manifest);
  CHECK(balance.source() == StateCount{3, 1, 1, 40});
  balance.close(manifest, plan_of({0, 1, 2}));
  CHECK(balance.left_out().at(0).reason == "--only model");
}

TEST_CASE("a step that loses entries without booking them is an internal error") {
  Manifest manifest = four_tensors();
  Balance balance;
  balance.open(manifest);
  SECTION("an entry that goes behind the account's back") {
    manifest.state.entries.pop_back();
    CHECK(status_of([&] { balance.leave_out(manifest, "x"); }).code == Code::kInternal);
    CHECK(status_of([&] { balance.close(manifest, plan_of({0, 1, 2})); }).code == Code::kInternal);
  }
  SECTION("one that nothing gives a reason for") {
    keep_entries(manifest, {true, true, true, false});
    const Status status = status_of([&] { balance.leave_out(manifest, ""); });
    CHECK(status.code == Code::kInternal);
    CHECK(status.message.find("t3") != std::string::npos);
  }
}

TEST_CASE("a tensor that no file of the plan holds is an internal error naming it") {
  Manifest manifest = four_tensors();
  Balance balance;
  balance.open(manifest);
  SECTION("a leaf") {
    const Status status = status_of([&] { balance.close(manifest, plan_of({0, 2, 3})); });
    CHECK(status.code == Code::kInternal);
    CHECK(status.message.find("\"t1\"") != std::string::npos);
  }
  SECTION("one inside of a value") {
    const Status status = status_of([&] { balance.close(manifest, plan_of({0, 1, 2})); });
    CHECK(status.code == Code::kInternal);
    CHECK(status.message.find("\"t3\"") != std::string::npos);
  }
  SECTION("unless the writer left it out, or holds it in another form") {
    OutputPlan plan = plan_of({0, 1});
    plan.left_out.push_back({LeftOut::Kind::kValue, "t3", "values are dropped"});
    plan.restated = {2};
    balance.close(manifest, plan);
    CHECK(balance.written() == StateCount{3, 0, 0, 24});
  }
}

TEST_CASE("another form changes the numbers and loses nothing") {
  Manifest manifest = four_tensors();
  Balance balance;
  balance.open(manifest);
  manifest.tensors[2].spec.dtype = DType::kBFloat16;
  balance.restate(manifest, "dtype");
  balance.close(manifest, plan_of({0, 1, 2, 3}));
  REQUIRE(balance.restated().size() == 1);
  CHECK(balance.restated()[0].change == StateCount{0, 0, 0, -6});
  CHECK(balance.written().bytes == 34);
}

TEST_CASE("a recorded account that does not add up is corrupt") {
  const StateCount source{3, 0, 0, 24}, written{2, 0, 0, 12};
  const LeftOutGroup group{"--exclude", {1, 0, 0, 12}, {"t2"}, {}};
  CHECK(Balance::recorded(source, written, {}, {group}).source() == source);
  CHECK(status_of([&] { Balance::recorded(source, written, {}, {}); }).code == Code::kCorrupt);
}

}  // namespace balance_test
