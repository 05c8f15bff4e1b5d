#include "capi/support.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace tessera::capi {
namespace {

constexpr std::chrono::milliseconds kReportEvery{100};

static_assert(static_cast<int>(Code::kOk) == TESSERA_OK &&
              static_cast<int>(Code::kInvalidArgument) == TESSERA_INVALID_ARGUMENT &&
              static_cast<int>(Code::kNotFound) == TESSERA_NOT_FOUND &&
              static_cast<int>(Code::kAlreadyExists) == TESSERA_ALREADY_EXISTS &&
              static_cast<int>(Code::kCorrupt) == TESSERA_CORRUPT &&
              static_cast<int>(Code::kUnsupported) == TESSERA_UNSUPPORTED &&
              static_cast<int>(Code::kOutOfRange) == TESSERA_OUT_OF_RANGE &&
              static_cast<int>(Code::kIo) == TESSERA_IO &&
              static_cast<int>(Code::kResourceExhausted) == TESSERA_RESOURCE_EXHAUSTED &&
              static_cast<int>(Code::kTimeout) == TESSERA_TIMEOUT &&
              static_cast<int>(Code::kCancelled) == TESSERA_CANCELLED &&
              static_cast<int>(Code::kInternal) == TESSERA_INTERNAL);

/// nullptr for an empty text, and where there is no memory for it: an error loses its words then, not its code.
char* copy_or_null(std::string_view text) noexcept {
  if (text.empty()) return nullptr;
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace

tessera_error error_of(const Status& status) {
  return {static_cast<std::int32_t>(status.code),
          status.context.rank,
          copy_or_null(status.message),
          copy_or_null(status.context.file),
          copy_or_null(status.context.tensor),
          copy_or_null(status.context.operation),
          copy_or_null(status.hint)};
}

char* text_for_caller(std::string_view text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  if (!text.empty()) std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) fail(Code::kInvalidArgument, fmt::format("{} is NULL", what));
}

void run_watched(const tessera_watch* watch, Progress& progress, CancelToken& cancel,
                 const std::function<void()>& work) {
  if (watch == nullptr || watch->progress == nullptr) return work();
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  std::exception_ptr failure;
  std::thread worker([&] {
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    failure = thrown;
    over = true;
    ended.notify_all();
  });
  const auto report = [&] {
    if (watch->progress(watch->user, progress.done_bytes.load(), progress.total_bytes.load()) != 0)
      cancel.cancel();
  };
  {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kReportEvery, [&] { return over; })) {
      lock.unlock();
      report();
      lock.lock();
    }
  }
  worker.join();
  if (failure) std::rethrow_exception(failure);
  report();  // the last figures; what is done can no longer be stopped
}

Value parse_request(const char* json, const char* what, int depth) {
  JsonLimits limits;
  limits.max_depth = depth;
  try {
    return parse_json(as_bytes(std::string_view(json)), limits);
  } catch (const Error& error) {  // a caller's mistake, not a damaged file
    fail(Code::kInvalidArgument, fmt::format("{}: {}", what, error.status().message));
  }
}

Request::Request(const char* json, const char* what) : what_(what) {
  if (json == nullptr) return;
  const Value value = parse_request(json, what, 8);
  if (!value.is_dict()) fail(Code::kInvalidArgument, fmt::format("{} is no JSON object", what));
  for (const auto& field : value.as_dict())
    if (!field.second.is_none()) fields_.push_back(field);  // null: as if it were not there
}

std::optional<Value> Request::take(std::string_view field) {
  const auto found = std::ranges::find_if(
      fields_, [&](const auto& each) { return each.first.as_string() == field; });
  if (found == fields_.end()) return std::nullopt;
  Value taken = std::move(found->second);
  fields_.erase(found);
  return taken;
}

void Request::fail_type(std::string_view field, const char* wanted) const {
  fail(Code::kInvalidArgument, fmt::format("{}: \"{}\" is not {}", what_, field, wanted));
}

std::string Request::text(std::string_view field) {
  const std::optional<Value> value = take(field);
  if (!value) return {};
  if (!value->is_string()) fail_type(field, "a string");
  return value->as_string();
}

std::vector<std::string> Request::texts(std::string_view field) {
  std::vector<std::string> out;
  const std::optional<Value> value = take(field);
  if (!value) return out;
  if (value->kind() != Value::Kind::kList) fail_type(field, "a list of strings");
  for (const Value& each : value->as_list()) {
    if (!each.is_string()) fail_type(field, "a list of strings");
    out.push_back(each.as_string());
  }
  return out;
}

bool Request::flag(std::string_view field, bool otherwise) {
  const std::optional<Value> value = take(field);
  if (!value) return otherwise;
  if (value->kind() != Value::Kind::kBool) fail_type(field, "true or false");
  return value->as_bool();
}

std::optional<std::int64_t> Request::number(std::string_view field) {
  const std::optional<Value> value = take(field);
  if (!value) return std::nullopt;
  if (!value->is_int()) fail_type(field, "an integer");
  return value->as_int();
}

std::uint64_t Request::size(std::string_view field, std::uint64_t otherwise) {
  const std::optional<std::int64_t> value = number(field);
  if (!value) return otherwise;
  if (*value < 0) fail_type(field, "0 or more");
  return static_cast<std::uint64_t>(*value);
}

void Request::finish() const {
  if (fields_.empty()) return;
  fail(Code::kInvalidArgument, fmt::format("{}: \"{}\" is none of its fields", what_,
                                           printable(fields_.front().first.as_string())));
}

}  // namespace tessera::capi

void tessera_error_clear(tessera_error* error) {
  if (error == nullptr) return;
  for (char** text :
       {&error->message, &error->file, &error->tensor, &error->operation, &error->hint}) {
    std::free(*text);
    *text = nullptr;
  }
  error->code = TESSERA_OK;
  error->rank = -1;
}

void tessera_free(void* memory) { std::free(memory); }

int32_t tessera_abi(void) { return TESSERA_ABI; }
