/* How native code moves a grammar backend's matchers: the C side of `SupportsNativeCalls`.

   A backend fills in one table and gives its address, and the address of a matcher, to Python. Calls come from any
   thread, without the interpreter's lock, but for one matcher from one thread at a time. They must not throw. A
   function may take that lock itself, as llguidance's do: threads then wait for each other there. */

#pragma once

#include <stdint.h>

/* Of this table, and of what Python calls in the libraries that come with it. */
#define SPECGRAMMAR_NATIVE_VERSION 8

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SpecgrammarCalls {
  /* int32 words of a row. */
  int64_t num_words;
  /* Move over a token: any id but a stop token. 1: moved. 0: illegal, the state is as it was. -1: failed. */
  int32_t (*accept)(const struct SpecgrammarCalls* self, void* matcher, int32_t token);
  /* Write every word of a row; all zero where nothing is legal. 0: written. -1: failed. */
  int32_t (*fill)(const struct SpecgrammarCalls* self, void* matcher, int32_t* row);
  /* Undo the last tokens. 0: undone. -1: failed. */
  int32_t (*rollback)(const struct SpecgrammarCalls* self, void* matcher, int32_t num_tokens);
  /* Write why this thread's last call failed, as text that ends with a zero, into `size` bytes. */
  void (*reason)(const struct SpecgrammarCalls* self, void* matcher, char* text, int64_t size);
} SpecgrammarCalls;

#ifdef __cplusplus
}
#endif
