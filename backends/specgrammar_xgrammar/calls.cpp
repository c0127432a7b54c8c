/* xgrammar's matchers for native walks: its functions, called as TVM FFI calls them, without the interpreter. */

#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "matcher_calls.h"

namespace {

/* A table of `SpecgrammarCalls` and what its functions need. */
struct XGrammarCalls {
  SpecgrammarCalls calls;
  TVMFFIObjectHandle accept_token;
  TVMFFIObjectHandle fill_next_token_bitmask;
  TVMFFIObjectHandle rollback;
  const uint8_t* is_text; /* by id: the library prints a warning for others */
  int64_t vocab_size;
};

const XGrammarCalls& table(const SpecgrammarCalls* self) { return *reinterpret_cast<const XGrammarCalls*>(self); }

thread_local char last_reason[400];

TVMFFIAny any(int32_t type_index) {
  TVMFFIAny value{};
  value.type_index = type_index;
  return value;
}

TVMFFIAny integer(int64_t number) {
  TVMFFIAny value = any(kTVMFFIInt);
  value.v_int64 = number;
  return value;
}

TVMFFIAny no() { return any(kTVMFFIBool); }

TVMFFIAny pointer(int32_t type_index, void* address) {
  TVMFFIAny value = any(type_index);
  value.v_ptr = address;
  return value;
}

TVMFFIAny object(void* handle) { return pointer(static_cast<TVMFFIObject*>(handle)->type_index, handle); }

void keep_reason() {
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) {
    std::snprintf(last_reason, sizeof last_reason, "an error without a message");
    return;
  }
  const TVMFFIByteArray& message = TVMFFIErrorGetCellPtr(error)->message;
  const size_t size = std::min(message.size, sizeof last_reason - 1);
  std::memcpy(last_reason, message.data, size);
  last_reason[size] = 0;
  TVMFFIObjectDecRef(error);
}

/* Call a method; -1 with a reason where it raises, else the integer or boolean that it returns. */
int64_t call(TVMFFIObjectHandle function, const TVMFFIAny* arguments, int32_t num_arguments) {
  TVMFFIAny result = any(kTVMFFINone);
  if (TVMFFIFunctionGetCellPtr(function)->safe_call(function, arguments, num_arguments, &result)) {
    keep_reason();
    return -1;
  }
  return result.type_index == kTVMFFINone ? 0 : result.v_int64;
}

int32_t accept(const SpecgrammarCalls* self, void* matcher, int32_t token) {
  if (token < 0 || token >= table(self).vocab_size || table(self).is_text[token] != 1) return 0;
  const TVMFFIAny arguments[] = {object(matcher), integer(token), no()};
  return static_cast<int32_t>(call(table(self).accept_token, arguments, 3));
}

int32_t fill(const SpecgrammarCalls* self, void* matcher, int32_t* row) {
  int64_t shape = self->num_words;
  int64_t stride = 1;
  DLTensor tensor{row, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &shape, &stride, 0};
  const TVMFFIAny arguments[] = {object(matcher), pointer(kTVMFFIDLTensorPtr, &tensor), integer(0), no()};
  return call(table(self).fill_next_token_bitmask, arguments, 4) < 0 ? -1 : 0;
}

int32_t rollback(const SpecgrammarCalls* self, void* matcher, int32_t num_tokens) {
  const TVMFFIAny arguments[] = {object(matcher), integer(num_tokens)};
  return call(table(self).rollback, arguments, 2) < 0 ? -1 : 0;
}

void reason(const SpecgrammarCalls*, void*, char* text, int64_t size) {
  std::snprintf(text, static_cast<size_t>(size), "%s", last_reason);
}

}  // namespace

extern "C" {

int32_t specgrammar_xgrammar_version() { return SPECGRAMMAR_NATIVE_VERSION; }

/* A table for one vocabulary. The functions are handles of xgrammar's methods, `is_text` has 1 for each id that stands
   for text; both have to outlive the table. */
SpecgrammarCalls* specgrammar_xgrammar_calls(void* accept_token, void* fill_next_token_bitmask, void* rollback_,
                                             const uint8_t* is_text, int64_t vocab_size, int64_t num_words) {
  auto* made = new XGrammarCalls{{num_words, accept, fill, rollback, reason},
                                 accept_token,
                                 fill_next_token_bitmask,
                                 rollback_,
                                 is_text,
                                 vocab_size};
  return &made->calls;
}

void specgrammar_xgrammar_free(SpecgrammarCalls* calls) { delete reinterpret_cast<XGrammarCalls*>(calls); }

}  // extern "C"
