// Any bytes as the journal of a stage: claims about files, or none. What is read is as long as the
// bytes allow, and another plan's journal says nothing.
#include <tessera/storage/memory_file_system.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"
#include "lib/storage/journal.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_journal)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kLeastRecordBytes = 28;
  MemoryFileSystem fs;
  const std::string path = "/stage/" + std::string(storage::kJournalName);
  fs.write_file(path, {reinterpret_cast<const std::byte*>(data), size});
  const auto stage = fs.open_directory("/stage");
  const std::string plan = "00112233445566778899aabbccddeeff";
  const auto content = storage::read_journal(*stage, storage::kJournalName, plan);
  if (!content) return 0;
  if (!content->same_plan) {
    if (!content->entries.empty() || content->valid_bytes != 0) std::abort();
    return 0;
  }
  if (content->valid_bytes > size) std::abort();
  if (content->entries.size() > size / kLeastRecordBytes) std::abort();
  // Going on behind what is valid keeps it, and adds what is appended.
  const auto writer = storage::JournalWriter::resume(fs, "/stage", content->valid_bytes);
  writer->append({7, 8, 9, 10});
  writer->close();
  const auto again = storage::read_journal(*stage, storage::kJournalName, plan);
  if (!again || again->seal || again->entries.size() != content->entries.size() + 1) std::abort();
  if (again->entries.back().length != 10) std::abort();
  // A journal of the same entries reads back as they are.
  fs.create_directory("/other");
  const auto copy = storage::JournalWriter::start(fs, "/other", plan, again->binding);
  for (const JournalEntry& entry : again->entries) copy->append(entry);
  copy->flush();
  copy->close();
  const auto read =
      storage::read_journal(*fs.open_directory("/other"), storage::kJournalName, plan);
  if (!read || read->entries.size() != again->entries.size()) std::abort();
  if (read->binding != content->binding) std::abort();
  return 0;
}
