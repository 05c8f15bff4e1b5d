#pragma once
// Mutators that know what they change: a byte turned in the middle of an archive dies at its first
// checksum, so that these take the input apart, change a part, and put it together again with right
// sizes and sums. Each falls back on plain mutation where the input is no such thing.
//
// A target defines LLVMFuzzerCustomMutator by one of TESSERA_MUTATOR's names; replay_main.cc brings
// an LLVMFuzzerMutate for builds without libFuzzer.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace tessera::fuzz {

using Random = std::mt19937;

/// `part` changed byte by byte, as libFuzzer does, into at most `most` bytes.
std::string mutated(std::string part, std::size_t most);

/// Zip records are changed, swapped, renamed, doubled or dropped; headers, sums and directory
/// follow (now and then one of them does not). `mutate_record` changes a record's bytes.
std::string mutate_zip(const std::string& input, Random& random, std::size_t most,
                       std::string (*mutate_record)(const std::string&, Random&, std::size_t));
/// Opcodes are dropped, doubled, swapped, or given other arguments; lengths follow.
std::string mutate_pickle(const std::string& input, Random& random, std::size_t most);
/// Tokens are dropped, doubled, swapped, or become numbers, texts and brackets that hurt.
std::string mutate_json(const std::string& input, Random& random, std::size_t most);
/// The header is changed as JSON, and its length follows.
std::string mutate_safetensors(const std::string& input, Random& random, std::size_t most);
/// A torch.save file: zip records, of which the pickle is changed as a pickle.
std::string mutate_archive(const std::string& input, Random& random, std::size_t most);
/// Lines of `key: value` text are dropped, doubled, indented, swapped; scalars change.
std::string mutate_lines(const std::string& input, Random& random, std::size_t most);

/// Integers of 1, 2, 4 or 8 bytes become numbers that hurt; runs of bytes are doubled and dropped.
/// The first byte, which chooses what the rest is for, mostly stays.
std::string mutate_words(const std::string& input, Random& random, std::size_t most);
/// A .zarray, NUL, and the name of a chunk.
std::string mutate_zarr(const std::string& input, Random& random, std::size_t most);
/// Our own manifest: changed as JSON, with the right checksum of its own at the end.
std::string mutate_seal(const std::string& input, Random& random, std::size_t most);
/// The journal of a stage: records are changed, doubled, swapped or dropped; sums follow.
std::string mutate_journal(const std::string& input, Random& random, std::size_t most);
/// A byte that says which record follows, and the record: a seal or other JSON.
std::string mutate_record(const std::string& input, Random& random, std::size_t most);

/// What LLVMFuzzerCustomMutator does with one of the functions above.
std::size_t apply_mutator(std::string (*mutate)(const std::string&, Random&, std::size_t),
                          std::uint8_t* data, std::size_t size, std::size_t max_size,
                          unsigned seed);

}  // namespace tessera::fuzz

#define TESSERA_MUTATOR(function)                                                             \
  extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,        \
                                                 std::size_t max_size, unsigned seed) {       \
    return tessera::fuzz::apply_mutator(tessera::fuzz::function, data, size, max_size, seed); \
  }
