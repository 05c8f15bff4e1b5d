#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>
#include <string_view>
#include <utility>

#include "tests/fsdp/counting_new.h"

namespace tessera::fsdp::test {
namespace {

struct Tally {
  NewCounts counts;
  std::map<const void*, std::int64_t> callers;  // offset in this program
  bool busy = false;                            // counting asks for memory itself
};
thread_local Tally* tally = nullptr;

/// Where a library lies.
struct Range {
  std::uintptr_t begin = UINTPTR_MAX, end = 0;
  bool has(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return begin <= at && at < end;
  }
};
struct Ranges {
  Range program, standard;
};

/// Once: asking the loader for each address takes milliseconds beside libraries as large as these.
const Ranges& ranges() {
  static const Ranges found = [] {
    Ranges out;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
          auto& all = *static_cast<Ranges*>(data);
          const std::string_view name(info->dlpi_name);
          const bool standard = name.find("libstdc++") != std::string_view::npos;
          if (!name.empty() && !standard) return 0;
          Range& range = standard ? all.standard : all.program;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD) continue;
            range.begin = std::min<std::uintptr_t>(range.begin, info->dlpi_addr + part.p_vaddr);
            range.end =
                std::max<std::uintptr_t>(range.end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
          }
          return standard ? 1 : 0;
        },
        &out);
    return out;
  }();
  return found;
}

/// The offset of the first caller outside of the standard library, where it is in this program.
__attribute__((noinline)) const void* own_caller() {
  constexpr int kMost = 12;
  void* frames[kMost];
  const int depth = backtrace(frames, kMost);
  // Operator new and the two it calls come first.
  for (int i = 3; i < depth; ++i) {
    if (ranges().standard.has(frames[i])) continue;
    if (!ranges().program.has(frames[i])) return nullptr;
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(frames[i]) -
                                         ranges().program.begin);
  }
  return nullptr;
}

__attribute__((noinline)) void note() {
  if (tally == nullptr || tally->busy) return;
  tally->busy = true;
  ++tally->counts.all;
  if (const void* caller = own_caller()) {
    ++tally->counts.own;
    ++tally->callers[caller];
  }
  tally->busy = false;
}

}  // namespace

CountNew::CountNew() {
  void* first[1];
  backtrace(first, 1);  // loads what it needs
  ranges();
  tally = new Tally;
}

CountNew::~CountNew() { delete std::exchange(tally, nullptr); }

const NewCounts& CountNew::counts() const { return tally->counts; }

std::string CountNew::own_callers() const {
  Tally* const mine = std::exchange(tally, nullptr);
  std::string text;
  for (const auto& [caller, times] : mine->callers)
    text += fmt::format("  {} times from {}\n", times, caller);
  tally = mine;
  return text;
}

}  // namespace tessera::fsdp::test

__attribute__((noinline)) void* operator new(std::size_t bytes) {
  tessera::fsdp::test::note();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
