#include "fsdp_core/comm/failure.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace tessera::fsdp {

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Status foreign(std::string_view what, Code otherwise) {
  const bool late = contains(what, "imed out") || contains(what, "imeout");
  return Status{late ? Code::kTimeout : otherwise, std::string(first_line(what)), {}, {}};
}

}  // namespace

std::string_view first_line(std::string_view what) {
  // Gloo begins with "[/path/of/its/source.cc:123] ".
  if (what.starts_with("[/")) {
    const auto end = what.find("] ");
    if (end != std::string_view::npos) what.remove_prefix(end + 2);
  }
  what = what.substr(0, what.find("\nException raised"));
  what = what.substr(0, what.find('\n'));
  return what.substr(0, what.find(". This is typically caused"));  // Gloo's advice
}

Status aborted_status(int global_rank, std::string_view reason) {
  return Status{Code::kCancelled,
                "rank " + std::to_string(global_rank) + " failed: " + std::string(reason),
                {"", "", "", global_rank},
                {}};
}

Status communication_status() {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const c10::DistError& error) {
    return foreign(error.what_without_backtrace(), Code::kIo);
  } catch (const c10::OutOfMemoryError& error) {
    return Status{Code::kResourceExhausted, std::string(first_line(error.what())), {}, {}};
  } catch (const c10::Error& error) {
    return foreign(error.what_without_backtrace(), Code::kInternal);
  } catch (const std::bad_alloc&) {
    return Status{Code::kResourceExhausted, "out of memory", {}, {}};
  } catch (const std::exception& error) {
    return foreign(error.what(), Code::kIo);
  } catch (...) {
    return Status{Code::kInternal, "an exception of unknown type", {}, {}};
  }
}

}  // namespace tessera::fsdp
