#include <fmt/core.h>
#include <tessera/base/error.h>

#include <new>
#include <system_error>

namespace tessera {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kAlreadyExists:
      return "already exists";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kOutOfRange:
      return "out of range";
    case Code::kIo:
      return "i/o error";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kTimeout:
      return "timeout";
    case Code::kCancelled:
      return "cancelled";
    case Code::kInternal:
      return "internal error";
  }
  return "internal error";
}

std::string Status::to_string() const {
  std::string text(code_name(code));
  if (!context.tensor.empty()) text += fmt::format(": tensor \"{}\"", context.tensor);
  text += ": " + message;
  std::string where;
  auto add = [&where](const std::string& part) {
    if (part.empty()) return;
    if (!where.empty()) where += ", ";
    where += part;
  };
  add(context.file);
  if (context.rank >= 0) add(fmt::format("rank {}", context.rank));
  add(context.operation);
  if (!where.empty()) text += " [" + where + "]";
  return text;
}

Error::Error(Status status) : std::runtime_error(status.to_string()), status_(std::move(status)) {}

void fail(Code code, std::string message, std::string hint) {
  throw Error(Status{code, std::move(message), {}, std::move(hint)});
}

Status current_exception_status() {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Status{Code::kResourceExhausted, "out of memory", {}, "lower --mem-limit or --threads"};
  } catch (const std::system_error& error) {
    // What is not ours: a thread that cannot be started, a path that <filesystem> looked at.
    const bool exhausted = error.code() == std::errc::resource_unavailable_try_again ||
                           error.code() == std::errc::not_enough_memory;
    const bool of_system = error.code().category() == std::system_category() ||
                           error.code().category() == std::generic_category();
    return Status{exhausted   ? Code::kResourceExhausted
                  : of_system ? Code::kIo
                              : Code::kInternal,
                  error.what(),
                  {},
                  exhausted ? "lower --mem-limit or --threads" : ""};
  } catch (const std::exception& error) {
    return Status{Code::kInternal, error.what(), {}, {}};
  } catch (...) {
    return Status{Code::kInternal, "an exception of unknown type", {}, {}};
  }
}

namespace detail {

void rethrow_with(const Error& error, std::string ErrorContext::*field, std::string_view value) {
  Status status = error.status();
  if ((status.context.*field).empty()) status.context.*field = value;
  throw Error(std::move(status));
}

void check_failed(const char* condition, const char* file, int line) {
  fail(Code::kInternal,
       fmt::format("{} does not hold at {}:{}; please report this", condition, file, line));
}

}  // namespace detail

}  // namespace tessera
