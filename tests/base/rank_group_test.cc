#include <tessera/base/bytes.h>
#include <tessera/base/rank_group.h>
#include <tessera/base/thread_meeting.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "lib/base/status_bytes.h"

namespace rank_group_test {

using namespace tessera;

namespace {

/// Runs `body` as every rank of a group over threads; what each rank threw, "" for nothing.
std::vector<std::string> on_threads(int size, const std::function<void(RankGroup&)>& body) {
  auto ranks = thread_ranks(size);
  std::vector<std::string> thrown(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank, group = std::move(ranks[rank])]() mutable {
      try {
        body(*group);
      } catch (const std::exception& error) {
        thrown[rank] = error.what();
      }
      group.reset();
    });
  for (auto& thread : threads) thread.join();
  return thrown;
}

std::string text_of(const std::vector<std::byte>& bytes) { return std::string(as_text(bytes)); }

}  // namespace

TEST_CASE("a status survives the way to another rank") {
  const Status sent{
      Code::kCorrupt, std::string("a\0b", 3), {"file", "tensor", "operation", 7}, "hint"};
  const Status got = status_from_bytes(status_to_bytes(sent));
  CHECK(got.code == sent.code);
  CHECK(got.message == sent.message);
  CHECK(got.context.file == "file");
  CHECK(got.context.tensor == "tensor");
  CHECK(got.context.operation == "operation");
  CHECK(got.context.rank == 7);
  CHECK(got.hint == "hint");
}

TEST_CASE("a damaged status is refused at every length") {
  const auto whole = status_to_bytes(Status{Code::kIo, "message", {"f", "t", "o", 1}, "h"});
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_THROWS_AS(status_from_bytes(std::span(whole).first(size)), Error);
  auto code = whole;
  code[0] = std::byte{200};
  CHECK_THROWS_AS(status_from_bytes(code), Error);
}

TEST_CASE("one rank alone gathers its own bytes and throws its own failure") {
  const auto group = single_rank();
  CHECK(group->size() == 1);
  CHECK(group->rank() == 0);
  CHECK(text_of(group->all_gather(as_bytes("x")).at(0)) == "x");
  group->barrier();
  group->agree({});
  CHECK_THROWS_WITH(group->agree(Status{Code::kIo, "gone", {}, {}}), "i/o error: gone [rank 0]");
}

TEST_CASE("ranks on threads gather bytes of different lengths by rank") {
  for (const int size : {1, 2, 3, 5, 8}) {
    const auto thrown = on_threads(size, [&](RankGroup& group) {
      for (int round = 0; round < 50; ++round) {
        const std::string mine(static_cast<std::size_t>((group.rank() * 7 + round) % 11),
                               static_cast<char>('a' + group.rank()));
        const auto all = group.all_gather(as_bytes(mine));
        for (int peer = 0; peer < size; ++peer) {
          const std::string theirs(static_cast<std::size_t>((peer * 7 + round) % 11),
                                   static_cast<char>('a' + peer));
          if (text_of(all[peer]) != theirs) fail(Code::kInternal, "wrong bytes");
        }
      }
      group.barrier();  // nobody leaves while others still gather
    });
    for (const auto& error : thrown) CHECK(error.empty());
  }
}

TEST_CASE("all ranks throw the status of the first failing rank") {
  const auto thrown = on_threads(4, [](RankGroup& group) {
    group.together([] {});
    group.together([&] {
      if (group.rank() >= 2)
        in_file("f" + std::to_string(group.rank()), [] { fail(Code::kNotFound, "no such file"); });
    });
  });
  for (const auto& error : thrown) CHECK(error == "not found: no such file [f2, rank 2]");
}

TEST_CASE("a group goes on after an agreed failure") {
  const auto thrown = on_threads(3, [](RankGroup& group) {
    bool failed = false;
    try {
      group.together([] { throw std::runtime_error("first"); });
    } catch (const Error&) {
      failed = true;
    }
    if (!failed) fail(Code::kInternal, "no failure was agreed");
    if (group.all_gather(as_bytes("x")).size() != 3) fail(Code::kInternal, "wrong size");
    group.barrier();
  });
  for (const auto& error : thrown) CHECK(error.empty());
}

TEST_CASE("a rank that leaves fails the calls of those that wait for it") {
  const auto start = std::chrono::steady_clock::now();
  const auto thrown = on_threads(3, [](RankGroup& group) {
    if (group.rank() == 1) fail(Code::kInternal, "rank 1 gives up");
    group.barrier();
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(thrown[0] == "i/o error: rank 1 has left the group [rank 1]");
  CHECK(thrown[2] == thrown[0]);
}

TEST_CASE("threads that do not come to a meeting are named when its time is over") {
  ThreadMeeting meeting({4, 5, 6}, std::chrono::milliseconds(50));
  CHECK_THROWS_WITH(meeting.arrive(1, nullptr), "timeout: ranks 4, 6 did not come within 50 ms");
  CHECK_THROWS_AS(meeting.arrive(0, nullptr), Error);  // dead from then on
}

TEST_CASE("the last thread to arrive judges what all laid down") {
  ThreadMeeting meeting({0, 1}, std::chrono::seconds(10));
  const auto equal = [](std::span<const void* const> all) {
    return *static_cast<const int*>(all[0]) == *static_cast<const int*>(all[1])
               ? Status{}
               : Status{Code::kInvalidArgument, "they differ", {}, {}};
  };
  std::string thrown[2];
  const auto run = [&](int member) {
    try {
      for (int round = 0; round < 3; ++round) {
        const int value = round == 2 ? member : 5;
        const ThreadMeeting::Visit visit(meeting, member, &value, equal);
      }
    } catch (const Error& error) {
      thrown[member] = error.what();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  CHECK(thrown[0] == "invalid argument: they differ");
  CHECK(thrown[1] == thrown[0]);
}

}  // namespace rank_group_test
