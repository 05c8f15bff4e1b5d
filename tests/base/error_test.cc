#include <tessera/base/error.h>
#include <tessera/base/progress.h>

#include <catch2/catch.hpp>
#include <new>

namespace error_test {

using namespace tessera;

TEST_CASE("a message says what, where and which rank") {
  Status status{Code::kCorrupt, "offsets disagree", {"a.bin", "w", "load", 3}, "copy it again"};
  CHECK(status.to_string() == "corrupt: tensor \"w\": offsets disagree [a.bin, rank 3, load]");
  CHECK(Status{Code::kIo, "no space", {}, {}}.to_string() == "i/o error: no space");
}

TEST_CASE("the innermost context wins") {
  try {
    in_operation("convert", [] {
      in_file("outer.bin", [] {
        in_file("inner.bin",
                [] { in_tensor("w", [] { fail(Code::kCorrupt, "bad", "try again"); }); });
      });
    });
    FAIL("no exception");
  } catch (const Error& error) {
    CHECK(error.status().context.file == "inner.bin");
    CHECK(error.status().context.tensor == "w");
    CHECK(error.status().context.operation == "convert");
    CHECK(error.status().hint == "try again");
    CHECK(error.code() == Code::kCorrupt);
  }
}

TEST_CASE("context passes results through") {
  int x = 1;
  int& y = in_file("f", [&x]() -> int& { return x; });
  y = 2;
  CHECK(x == 2);
}

TEST_CASE("any exception becomes a status") {
  const auto status_of = [](auto thrower) {
    try {
      thrower();
    } catch (...) {
      return current_exception_status();
    }
    return Status{};
  };
  CHECK(status_of([] { fail(Code::kUnsupported, "x"); }).code == Code::kUnsupported);
  CHECK(status_of([] { throw std::bad_alloc(); }).code == Code::kResourceExhausted);
  CHECK(status_of([] { throw std::runtime_error("x"); }).code == Code::kInternal);
  CHECK(status_of([] { throw 7; }).code == Code::kInternal);
}

TEST_CASE("a broken invariant is internal and names its condition") {
  try {
    TESSERA_CHECK(1 + 1 == 3);
    FAIL("no exception");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInternal);
    CHECK(error.status().message.find("1 + 1 == 3") != std::string::npos);
  }
}

TEST_CASE("a cancelled token throws when polled") {
  CancelToken token;
  token.check();
  token.cancel();
  CHECK(token.cancelled());
  CHECK_THROWS_AS(token.check(), Error);
}

}  // namespace error_test
