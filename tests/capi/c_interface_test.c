/* The C interface from C: what it promises in tessera/c.h.   c_interface_test SAMPLES WORK_FOLDER */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/c.h>

static int failures = 0;

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
      ++failures;                                                       \
    }                                                                   \
  } while (0)

/* Frees the error; its code. */
static int code_of(tessera_error error) {
  const int code = error.code;
  tessera_error_clear(&error);
  return code;
}

static void succeed(tessera_error error, const char* what) {
  if (error.code == TESSERA_OK) return;
  fprintf(stderr, "%s: %s\n", what, error.message ? error.message : "?");
  exit(1);
}

static int stop(void* user, uint64_t done, uint64_t total) {
  (void)done, (void)total;
  ++*(int*)user;
  return 1;
}

static void reading(const char* sample) {
  tessera_checkpoint* c = NULL;
  succeed(tessera_open(sample, NULL, &c), "open");
  CHECK(tessera_tensor_count(c) > 0);
  for (size_t i = 0; i < tessera_tensor_count(c); ++i) {
    tessera_tensor t, again;
    succeed(tessera_tensor_at(c, i, &t), "tensor_at");
    succeed(tessera_find(c, t.name, &again), "find");
    CHECK(t.index == again.index && t.shape == again.shape);
    char* whole = malloc(t.bytes + 1);
    succeed(tessera_read(c, t.index, NULL, NULL, whole, t.bytes, NULL), "read");
    CHECK(code_of(tessera_read(c, t.index, NULL, NULL, whole, t.bytes + 1, NULL)) == TESSERA_INVALID_ARGUMENT);
    if (t.ndim == 2 && t.shape[0] > 1 && t.shape[1] > 1) { /* a block is the whole's part */
      const int64_t begin[2] = {1, 1}, end[2] = {t.shape[0], t.shape[1]}, bad[2] = {t.shape[0] + 1, t.shape[1]};
      const size_t element = t.bytes / (size_t)(t.shape[0] * t.shape[1]), row = (size_t)(t.shape[1] - 1) * element;
      const size_t size = (size_t)(t.shape[0] - 1) * row;
      char* block = malloc(size);
      succeed(tessera_read(c, t.index, begin, end, block, size, NULL), "read a block");
      for (int64_t r = 1; r < t.shape[0]; ++r)
        CHECK(memcmp(block + (size_t)(r - 1) * row, whole + ((size_t)(r * t.shape[1] + 1)) * element, row) == 0);
      CHECK(code_of(tessera_read(c, t.index, begin, bad, block, size, NULL)) == TESSERA_OUT_OF_RANGE);
      CHECK(code_of(tessera_read(c, t.index, begin, NULL, block, size, NULL)) == TESSERA_INVALID_ARGUMENT);
      free(block);
    }
    free(whole);
  }
  tessera_tensor none;
  CHECK(code_of(tessera_tensor_at(c, tessera_tensor_count(c), &none)) == TESSERA_OUT_OF_RANGE);
  CHECK(code_of(tessera_read(c, 0xffffffffu, NULL, NULL, NULL, 0, NULL)) == TESSERA_OUT_OF_RANGE);
  tessera_error error = tessera_find(c, "no.such.tensor", &none);
  CHECK(error.code == TESSERA_INVALID_ARGUMENT && strstr(error.message, "no.such.tensor") != NULL);
  tessera_error_clear(&error);
  CHECK(error.message == NULL && error.code == TESSERA_OK);
  tessera_error_clear(&error);
  char* json = NULL;
  succeed(tessera_describe(c, &json), "describe");
  CHECK(strstr(json, "\"format\":\"torch-dcp\"") != NULL);
  tessera_free(json);
  tessera_close(c);

  c = NULL;
  CHECK(code_of(tessera_open("no/such/path", NULL, &c)) == TESSERA_NOT_FOUND && c == NULL);
  CHECK(code_of(tessera_open(sample, "{\"roots\":\"model\"}", &c)) == TESSERA_INVALID_ARGUMENT);
  CHECK(code_of(tessera_open(sample, "{\"root\":1}", &c)) == TESSERA_INVALID_ARGUMENT);
  CHECK(code_of(tessera_open(sample, "[", &c)) == TESSERA_INVALID_ARGUMENT);
  CHECK(code_of(tessera_open(NULL, NULL, &c)) == TESSERA_INVALID_ARGUMENT);
  CHECK(c == NULL);
  tessera_close(NULL);
}

static void commands(const char* sample, const char* work) {
  char* json = NULL;
  int32_t status = -1;
  const char* verify[] = {"verify", sample};
  succeed(tessera_run(verify, 2, NULL, &json, &status), "verify");
  CHECK(status == 0 && strstr(json, "\"ok\":true") != NULL);
  tessera_free(json);
  char out[4096];
  snprintf(out, sizeof out, "%s/converted", work);
  int asked = 0;
  const tessera_watch stops = {stop, &asked};
  const char* convert[] = {"convert", sample, out, "--to", "torch-dcp", "--force"};
  succeed(tessera_run(convert, 6, NULL, &json, &status), "convert");
  CHECK(status == 0);
  tessera_free(json);
  const char* diff[] = {"diff", sample, out};
  succeed(tessera_run(diff, 3, &stops, &json, &status), "diff"); /* over before it could be stopped */
  CHECK(status == 0 && asked == 1);
  tessera_free(json);
  json = NULL;
  const char* refused[][3] = {{"verify", sample, "--format=json"}, {"hash", sample, "--progress"},
                              {"verify", sample, "--nonsense"},    {"frobnicate", sample, "--strict"},
                              {"verify", sample, "--help"}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i)
    CHECK(code_of(tessera_run(refused[i], 3, NULL, &json, &status)) == TESSERA_INVALID_ARGUMENT);
  CHECK(code_of(tessera_run(verify, 0, NULL, &json, &status)) == TESSERA_INVALID_ARGUMENT && json == NULL);
}

static void live(const char* work) {
  float weight[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const int64_t origin[2] = {0, 0}, shape[2] = {2, 3}, strides[2] = {3, 1};
  const tessera_piece piece = {origin, shape, strides, 0, -1, weight};
  tessera_live_tensor tensor = {"float32", shape, &piece, 2, 1, 1, 1};
  tessera_ranks* ranks = NULL;
  tessera_state* state = NULL;
  tessera_pending* pending = NULL;
  char* report = NULL;
  char path[4096];
  succeed(tessera_ranks_single(&ranks), "ranks");
  succeed(tessera_state_new("{\"model\":{\"w\":{\"__tensor__\":\"0\"}},\"step\":7,\"seed\":9}", &tensor, 1,
                            "[\"seed\"]", &state), "state");
  snprintf(path, sizeof path, "%s/saved", work);
  succeed(tessera_save(path, state, ranks, "{\"force\":true}", NULL, &report), "save");
  CHECK(strstr(report, "\"total_bytes\":") != NULL);
  tessera_free(report);
  CHECK(code_of(tessera_save(path, state, ranks, NULL, NULL, &report)) == TESSERA_ALREADY_EXISTS);
  snprintf(path, sizeof path, "%s/saved_later", work);
  succeed(tessera_save_async(path, state, ranks, "{\"force\":true}", &pending), "save_async");
  memset(weight, 0, sizeof weight); /* does not reach the checkpoint */
  succeed(tessera_pending_wait(pending, &report), "wait");
  CHECK(tessera_pending_done(pending) == 1);
  tessera_free(report);
  tessera_pending_free(pending);
  succeed(tessera_load(path, state, ranks, NULL, NULL, &report), "load");
  CHECK(weight[0][0] == 1 && weight[1][2] == 6);
  CHECK(strstr(report, "{\"name\":\"step\",\"path\":[\"step\"],\"value\":7}") != NULL);
  CHECK(strstr(report, "{\"name\":\"seed\",\"path\":[\"seed\"],\"value\":9}") != NULL);
  tessera_free(report);
  CHECK(code_of(tessera_load(path, state, ranks, "{\"model\":\"sloppy\"}", NULL, &report)) == TESSERA_INVALID_ARGUMENT);
  tessera_state_free(state);
  state = NULL;
  CHECK(code_of(tessera_state_new("{\"w\":{\"__tensor__\":\"1\"}}", &tensor, 1, NULL, &state)) == TESSERA_INVALID_ARGUMENT);
  CHECK(code_of(tessera_state_new("{\"w\":{\"__tensor__\":\"0\"}}", &tensor, 1, "[\"w\"]", &state)) ==
        TESSERA_INVALID_ARGUMENT);
  tensor.dtype = "float31";
  CHECK(code_of(tessera_state_new("{\"w\":{\"__tensor__\":\"0\"}}", &tensor, 1, NULL, &state)) == TESSERA_INVALID_ARGUMENT);
  CHECK(state == NULL);
  tessera_ranks_free(ranks);
}

static int gathers_nothing(void* user, const void* mine, size_t bytes, tessera_gathered* all) {
  (void)user, (void)mine, (void)bytes, (void)all;
  return 0;
}

static int gather_fails(void* user, const void* mine, size_t bytes, tessera_gathered* all) {
  (void)user, (void)mine, (void)bytes;
  tessera_gathered_fail(all, "the cable is out");
  return 1;
}

static int gathers_mine(void* user, const void* mine, size_t bytes, tessera_gathered* all) {
  (void)user;
  tessera_gathered_put(all, 0, mine, bytes);
  return 0;
}

/* Calls that do not keep their promise are errors, never wrong checkpoints. */
static void bad_ranks(const char* work) {
  char path[4096];
  snprintf(path, sizeof path, "%s/never", work);
  tessera_rank_calls calls = {NULL, 0, 2, gathers_nothing, NULL, NULL, NULL};
  tessera_ranks* ranks = NULL;
  tessera_state* state = NULL;
  char* report = NULL;
  succeed(tessera_state_new("{\"step\":1}", NULL, 0, NULL, &state), "state");
  succeed(tessera_ranks_new(&calls, &ranks), "ranks");
  CHECK(code_of(tessera_save(path, state, ranks, NULL, NULL, &report)) == TESSERA_INVALID_ARGUMENT);
  tessera_ranks_free(ranks);
  calls.all_gather = gather_fails;
  succeed(tessera_ranks_new(&calls, &ranks), "ranks");
  tessera_error error = tessera_save(path, state, ranks, NULL, NULL, &report);
  CHECK(error.code == TESSERA_IO && strstr(error.message, "the cable is out") != NULL);
  tessera_error_clear(&error);
  tessera_ranks_free(ranks);
  tessera_pending* pending = NULL;
  calls.all_gather = gathers_mine;
  calls.size = 1;
  succeed(tessera_ranks_new(&calls, &ranks), "ranks");
  CHECK(code_of(tessera_save_async(path, state, ranks, NULL, &pending)) == TESSERA_UNSUPPORTED);
  tessera_ranks_free(ranks);
  calls.rank = 2;
  CHECK(code_of(tessera_ranks_new(&calls, &ranks)) == TESSERA_INVALID_ARGUMENT);
  CHECK(report == NULL && pending == NULL);
  tessera_state_free(state);
}

int main(int argc, char** argv) {
  if (argc != 3) return fputs("c_interface_test SAMPLES WORK_FOLDER\n", stderr), 2;
  char sample[4096];
  snprintf(sample, sizeof sample, "%s/dcp/fsdp2_w4/checkpoint", argv[1]);
  CHECK(tessera_abi() == TESSERA_ABI);
  CHECK(strlen(tessera_version()) >= 5);
  reading(sample);
  commands(sample, argv[2]);
  live(argv[2]);
  bad_ranks(argv[2]);
  if (failures == 0) puts("the C interface keeps its promises");
  return failures != 0;
}
