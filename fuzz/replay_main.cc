// Runs a fuzz target over files and folders, each input once, without a fuzzer; with -mutate=N also
// over N inputs that the target's own mutator makes of them.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed);

namespace {

std::mt19937& random_numbers() {
  static std::mt19937 random(1);
  return random;
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

void mutate_all(const std::vector<std::string>& corpus, long count) {
  constexpr std::size_t kMost = std::size_t{1} << 16;
  std::mt19937& random = random_numbers();
  std::string input;
  for (long i = 0; i < count; ++i) {
    // Mostly a few changes to a seed, now and then many.
    if (i % 8 == 0 || input.empty()) input = corpus[random() % corpus.size()];
    const std::size_t size = std::min(input.size(), kMost);
    input.resize(kMost);
    input.resize(LLVMFuzzerCustomMutator(reinterpret_cast<std::uint8_t*>(input.data()), size, kMost,
                                         static_cast<unsigned>(random())));
    run(input);
  }
}

}  // namespace

/// libFuzzer brings its own; this one does what matters most.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t max_size) {
  std::mt19937& random = random_numbers();
  if (size == 0 || (size < max_size && random() % 4 == 0)) {
    if (size >= max_size) return size;
    const std::size_t at = random() % (size + 1);
    std::memmove(data + at + 1, data + at, size - at);
    data[at] = static_cast<std::uint8_t>(random());
    return size + 1;
  }
  const std::size_t at = random() % size;
  if (random() % 4 == 0) {
    std::memmove(data + at, data + at + 1, size - at - 1);
    return size - 1;
  }
  data[at] = random() % 2 == 0 ? static_cast<std::uint8_t>(random())
                               : static_cast<std::uint8_t>(data[at] ^ 1u << random() % 8);
  return size;
}

int main(int argc, char** argv) {
  std::vector<std::string> corpus;
  long mutations = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-mutate=", 8) == 0) {
      mutations = std::atol(argv[i] + 8);
    } else if (!std::filesystem::is_directory(argv[i])) {
      corpus.push_back(slurp(argv[i]));
    } else {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i]))
        if (entry.is_regular_file()) corpus.push_back(slurp(entry.path()));
    }
  }
  std::sort(corpus.begin(), corpus.end());
  for (const std::string& input : corpus) run(input);
  if (!corpus.empty()) mutate_all(corpus, mutations);
  std::printf("%zu inputs, %ld mutated ones\n", corpus.size(), mutations);
  return corpus.empty();
}
