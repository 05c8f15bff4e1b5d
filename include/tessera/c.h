/* The C interface of Tessera, in one shared library (libtessera.so): what other languages bind. Python's
 * package `tessera` is built on nothing else.
 *
 *   tessera_checkpoint* c;
 *   tessera_error e = tessera_open("run/step-4", NULL, &c);
 *   if (e.code != TESSERA_OK) { fprintf(stderr, "%s\n", e.message); tessera_error_clear(&e); return 1; }
 *   tessera_tensor t;
 *   e = tessera_find(c, "model.lm_head.weight", &t);       // dtype, shape
 *   e = tessera_read(c, t.index, NULL, NULL, buffer, size, NULL);
 *   tessera_close(c);
 *
 * Rules of every function here:
 * - A failure is the value that is returned; nothing is thrown, printed or kept for later. On failure the
 *   out parameters are untouched. tessera_error_clear() frees what an error holds, and may be called on any.
 * - Handles are opaque. Several threads may read from one checkpoint; a state and a group of ranks belong to
 *   one call at a time.
 * - Text is UTF-8 and ends in NUL. Text that is returned as char* is the caller's: tessera_free().
 * - Requests with many optional fields are JSON objects, whose fields are listed; NULL is {}. An unknown field is
 *   TESSERA_INVALID_ARGUMENT. Reports are the JSON documents that the commands print (docs/json).
 * - Long calls take a tessera_watch: they call it from the calling thread, about ten times a second, and stop soon
 *   after it returns something else than 0 (TESSERA_CANCELLED). NULL: nobody watches.
 */
#ifndef TESSERA_C_H
#define TESSERA_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TESSERA_API __attribute__((visibility("default")))
#else
#define TESSERA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function's meaning or a struct's layout changes; new functions do not raise it. */
#define TESSERA_ABI 1

/* In the order of tessera::Code (tessera/base/error.h), which says what each means. */
typedef enum tessera_code {
  TESSERA_OK,
  TESSERA_INVALID_ARGUMENT,
  TESSERA_NOT_FOUND,
  TESSERA_ALREADY_EXISTS,
  TESSERA_CORRUPT,
  TESSERA_UNSUPPORTED,
  TESSERA_OUT_OF_RANGE,
  TESSERA_IO,
  TESSERA_RESOURCE_EXHAUSTED,
  TESSERA_TIMEOUT,
  TESSERA_CANCELLED,
  TESSERA_INTERNAL
} tessera_code;

/* What failed, where, and what to do. Fields that are not known are NULL; rank is -1. */
typedef struct tessera_error {
  int32_t code; /* a tessera_code */
  int32_t rank;
  char* message;
  char* file;
  char* tensor;
  char* operation;
  char* hint;
} tessera_error;

TESSERA_API void tessera_error_clear(tessera_error* error);
TESSERA_API void tessera_free(void* memory);
TESSERA_API const char* tessera_version(void); /* "0.1.0" */
TESSERA_API int32_t tessera_abi(void);         /* TESSERA_ABI of the library */

typedef struct tessera_watch {
  /* Bytes done, and in all (0: not known yet). Another value than 0 stops the call. */
  int (*progress)(void* user, uint64_t done, uint64_t total);
  void* user;
} tessera_watch;

/* ---- commands ---- */

/* What a command does and prints, in this process. words: as typed after `tessera`: a verb of ckpt-inspect, or
 * "reshard" or "convert", with its paths and flags: {"verify", "run/step-4", "--level", "quick"}. *json: the
 * document that --format json prints. *status: the command's exit status: 0; 1 where a check is negative (not equal,
 * findings); 4 and more where the result itself is the reason (scan found a dangerous file, verify of several paths met
 * one that it cannot open). Where a command prints no document, there is an error. --format, --progress and --npy are
 * refused. */
TESSERA_API tessera_error tessera_run(const char* const* words, size_t count,
                                      const tessera_watch* watch, char** json, int32_t* status);

/* ---- reading ---- */

typedef struct tessera_checkpoint tessera_checkpoint;

/* Any checkpoint that the commands open. options: "from" (format id), "root", "include" [globs], "exclude" [globs],
 * "only" ("model", "optim", "other"), "mem_limit" (bytes), "threads". */
TESSERA_API tessera_error tessera_open(const char* path, const char* options,
                                       tessera_checkpoint** checkpoint);
TESSERA_API void tessera_close(tessera_checkpoint* checkpoint);

/* {"path","format","dialect","world_size","notes":[..],"values":{name: value},"optim":[roots]}. Values as `ls` prints
 * them (encoding/json.h has the tags). */
TESSERA_API tessera_error tessera_describe(tessera_checkpoint* checkpoint, char** json);

/* One tensor that the checkpoint lists. Pointers live as long as the checkpoint. */
typedef struct tessera_tensor {
  uint32_t index;       /* for the calls below */
  uint32_t ndim;
  const char* name;
  const char* dtype;    /* PyTorch's name: "bfloat16" */
  const char* kind;     /* "param", "buffer", "optim", "other": as `ls` prints it */
  const int64_t* shape; /* ndim extents */
  uint64_t bytes;       /* of its content: row-major, unpadded, little-endian */
} tessera_tensor;

TESSERA_API size_t tessera_tensor_count(const tessera_checkpoint* checkpoint);
/* The i-th in stored order, i < tessera_tensor_count(). */
TESSERA_API tessera_error tessera_tensor_at(tessera_checkpoint* checkpoint, size_t i,
                                            tessera_tensor* tensor);
/* TESSERA_INVALID_ARGUMENT, with the nearest name, where nothing is called so. */
TESSERA_API tessera_error tessera_find(tessera_checkpoint* checkpoint, const char* name,
                                       tessera_tensor* tensor);

/* Elements [begin[d], end[d]) of each dim into `data`, row-major and dense; NULL for both: all of it. `bytes`: the
 * size of `data`, which must be that of the block. Tensors whose elements are no whole bytes: all of it alone. Reads
 * what the block needs and no more, whatever the sharding; checks the checksums that this reads completely. */
TESSERA_API tessera_error tessera_read(tessera_checkpoint* checkpoint, uint32_t index,
                                       const int64_t* begin, const int64_t* end, void* data,
                                       size_t bytes, const tessera_watch* watch);

/* Where all of the tensor's bytes lie as they are, in one file and in one row, so that a mapping of the file needs no
 * copy. *file: the path, the caller's. TESSERA_UNSUPPORTED where they do not: sharded, compressed, strided. */
TESSERA_API tessera_error tessera_place(tessera_checkpoint* checkpoint, uint32_t index, char** file,
                                        uint64_t* offset);

/* ---- ranks ---- */

typedef struct tessera_ranks tessera_ranks;
typedef struct tessera_gathered tessera_gathered;

/* The group of a job, by its own means of communication. Calls are collective and come in the same order on every
 * rank; those of a duplicate come from another thread. */
typedef struct tessera_rank_calls {
  void* user;
  int32_t rank;
  int32_t size;
  /* Sends `mine` to all ranks and passes what each sent, this one too, to tessera_gathered_put(). 0, or another value
   * where a rank did not answer, after tessera_gathered_fail(). */
  int (*all_gather)(void* user, const void* mine, size_t bytes, tessera_gathered* all);
  /* The same to rank 0 alone; others put nothing. NULL: all_gather is used. */
  int (*gather)(void* user, const void* mine, size_t bytes, tessera_gathered* all);
  /* Another group of the same ranks, for work in the background. NULL: tessera_save_async is TESSERA_UNSUPPORTED. */
  int (*duplicate)(void* user, struct tessera_rank_calls* made);
  /* The group is no longer needed. May be NULL. */
  void (*release)(void* user);
} tessera_rank_calls;

TESSERA_API void tessera_gathered_put(tessera_gathered* all, int32_t rank, const void* data,
                                      size_t bytes);
/* Says why the call failed; the text is copied. */
TESSERA_API void tessera_gathered_fail(tessera_gathered* all, const char* why);

TESSERA_API tessera_error tessera_ranks_new(const tessera_rank_calls* calls, tessera_ranks** ranks);
/* The group of one process. */
TESSERA_API tessera_error tessera_ranks_single(tessera_ranks** ranks);
/* Waits for a save in the background. */
TESSERA_API void tessera_ranks_free(tessera_ranks* ranks);

/* ---- live state ---- */

/* Part of a tensor in this rank's memory, which is borrowed until the state is freed. */
typedef struct tessera_piece {
  const int64_t* origin;  /* of its box in the whole tensor: ndim numbers */
  const int64_t* extents; /* of the box */
  const int64_t* strides; /* in elements; NULL: dense, row-major */
  int64_t flat_begin;     /* elements of the box's row-major ravel that are here; the whole box: 0 */
  int64_t flat_end;       /* and -1 */
  void* data;
} tessera_piece;

typedef struct tessera_live_tensor {
  const char* dtype;
  const int64_t* shape; /* of the whole, over all ranks */
  const tessera_piece* pieces;
  uint32_t ndim;
  uint32_t piece_count;  /* 0: nothing of it is on this rank */
  uint8_t replicated;    /* other ranks may hold equal pieces */
  uint8_t is_parameter;
} tessera_live_tensor;

typedef struct tessera_state tessera_state;

/* The state of a job as this rank sees it. tree: tagged JSON (encoding/tagged_json.h) in which {"__tensor__":"3"} is
 * tensors[3]; names follow torch.distributed.checkpoint's rule. per_rank: a JSON list of names of values of which every
 * rank has its own; NULL: none. Everything but the memory itself is copied. */
TESSERA_API tessera_error tessera_state_new(const char* tree, const tessera_live_tensor* tensors,
                                            size_t count, const char* per_rank,
                                            tessera_state** state);
TESSERA_API void tessera_state_free(tessera_state* state);

/* options: "format", "force", "update_latest", "keep_last", "mem_limit" (bytes a rank), "threads". *report:
 * {"bytes_written","total_bytes","seconds","plan_reused","plan_bytes","removed":[..],"failed_removals":[..],"balance"}.
 */
TESSERA_API tessera_error tessera_save(const char* path, const tessera_state* state,
                                       tessera_ranks* ranks, const char* options,
                                       const tessera_watch* watch, char** report);

typedef struct tessera_pending tessera_pending;

/* Returns once the state has been copied. The group is busy until tessera_pending_wait(). */
TESSERA_API tessera_error tessera_save_async(const char* path, const tessera_state* state,
                                             tessera_ranks* ranks, const char* options,
                                             tessera_pending** pending);
TESSERA_API int32_t tessera_pending_done(const tessera_pending* pending);
TESSERA_API tessera_error tessera_pending_wait(tessera_pending* pending, char** report);
/* Does not wait. */
TESSERA_API void tessera_pending_free(tessera_pending* pending);

/* Fills the state's tensors in place. policy: "model", "optimizer", "other" (each "strict", "allow_missing",
 * "allow_unexpected", "allow_both", "skip"), "allow_mismatched", "allow_cast", "from", "root", "verify", "check_crc",
 * "safety" ("aside", "read_twice", "in_place"), "mem_limit", "stage_limit" (bytes a rank), "threads". *report:
 * {"format","path","bytes_read","seconds","loaded":[..],"missing":[..],"unexpected":[..],"skipped":[..],
 * "mismatched":[{"name","expected","found"}],"cast":[..],"notes":[..],"values":[{"name","path":[..],"value"}]}. A value
 * is tagged JSON; one that has no such form has "object": its class instead. */
TESSERA_API tessera_error tessera_load(const char* path, const tessera_state* state,
                                       tessera_ranks* ranks, const char* policy,
                                       const tessera_watch* watch, char** report);

#ifdef __cplusplus
}
#endif

#endif
