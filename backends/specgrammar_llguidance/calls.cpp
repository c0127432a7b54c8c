/* llguidance's matchers for native walks: the methods of its Python objects, called without bytecode between them.

   What its C interface offers instead shares no lexer, and would have to be copied for each request. What is rare
   is left to methods of `LLGuidanceMatcher`, which works on the same state. */

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "matcher_calls.h"

/* Functions of the interpreter that this is loaded into; its headers need not be there to compile. */
extern "C" {
struct PyObject;
extern PyObject* PyExc_KeyboardInterrupt;
int PyGILState_Ensure();
void PyGILState_Release(int state);
void Py_IncRef(PyObject* object);
void Py_DecRef(PyObject* object);
PyObject* PyObject_VectorcallMethod(PyObject* name, PyObject* const* arguments, size_t num_arguments, PyObject* names);
int PyObject_IsTrue(PyObject* object);
PyObject* PyObject_Str(PyObject* object);
PyObject* PyLong_FromLongLong(long long number);
PyObject* PyList_New(intptr_t size);
intptr_t PyList_Size(PyObject* list);
int PyList_SetItem(PyObject* list, intptr_t index, PyObject* stolen);
int PyList_Append(PyObject* list, PyObject* item);
int PyList_SetSlice(PyObject* list, intptr_t begin, intptr_t end, PyObject* items);
PyObject* PyUnicode_InternFromString(const char* text);
const char* PyUnicode_AsUTF8AndSize(PyObject* text, intptr_t* size);
int PyErr_ExceptionMatches(PyObject* type);
void PyErr_Clear();
void PyErr_Fetch(PyObject** type, PyObject** value, PyObject** traceback);
void PyErr_NormalizeException(PyObject** type, PyObject** value, PyObject** traceback);
void PyErr_SetInterrupt();
}

namespace {

/* The interpreter's lock, from any thread. */
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  int state_;
};

std::atomic<int> num_inside{0};
std::atomic<bool> is_over{false};
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { num_inside.store(0); });

/* A call of a matcher; false where the interpreter ends. It would end the threads that ask for its lock, which C++ does
   not survive. */
class Entry {
 public:
  Entry() { num_inside.fetch_add(1); }
  ~Entry() { num_inside.fetch_sub(1); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  explicit operator bool() const { return !is_over.load(); }
};

/* A reference that is given back. */
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_DecRef(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  operator PyObject*() const { return object_; }

 private:
  PyObject* object_;
};

/* Methods: of the library's matcher, and behind them of `LLGuidanceMatcher`. */
constexpr const char* kNames[] = {"try_consume_tokens", "unsafe_compute_mask_ptr", "rollback",           "is_error",
                                  "_fill_row",          "_compute_mask",           "_raise_if_poisoned", "_replay"};
enum Name {
  kTryConsumeTokens,
  kUnsafeComputeMaskPtr,
  kRollback,
  kIsError,
  kFillRow,
  kComputeMask,
  kRaiseIfPoisoned,
  kReplay,
  kNumNames
};
static_assert(sizeof kNames / sizeof *kNames == kNumNames);

/* `MatcherState` of `calls.py`. Only `mask_depth` is written here, and the list of tokens is changed. */
struct State {
  PyObject* matcher;
  PyObject* native;
  PyObject* tokens;
  int32_t* unread_row;
  int64_t mask_depth;
  bool by_copies;
};

/* A table of `SpecgrammarCalls` and what its functions need. */
struct LLGuidanceCalls {
  SpecgrammarCalls calls;
  int64_t vocab_size;
  PyObject* row_bytes;
  PyObject* names[kNumNames];
};

thread_local char last_reason[400];

int32_t over() {
  std::snprintf(last_reason, sizeof last_reason, "the interpreter ends");
  return -1;
}

/* Keep the text of the error that is set, which is then set no more; -1. */
int32_t failed() {
  const bool is_interrupt = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Ref kept_type(type), kept_value(value), kept_traceback(traceback);
  const Ref text(value ? PyObject_Str(value) : nullptr);
  const char* message = text ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
  std::snprintf(last_reason, sizeof last_reason, "%s", message ? message : "an error without a message");
  PyErr_Clear();
  if (is_interrupt) PyErr_SetInterrupt(); /* the user has pressed a key: what called the walk hears of it */
  return -1;
}

/* A matcher while one of its functions runs. What returns -1, or no object, has set an error. */
class Matcher {
 public:
  Matcher(const SpecgrammarCalls* table, void* state)
      : table_(*reinterpret_cast<const LLGuidanceCalls*>(table)), state_(*static_cast<State*>(state)) {}

  int32_t accept(int32_t token) const {
    /* See `LLGuidanceMatcher`: a turn off the path to a mask that is remembered. */
    if (state_.mask_depth > PyList_Size(state_.tokens) && fill(kComputeMask, state_.unread_row) < 0) return -1;
    const Ref id(PyLong_FromLongLong(token)), ids(PyList_New(1));
    if (!id || !ids) return -1;
    Py_IncRef(id);
    PyList_SetItem(ids, 0, id);
    const Ref num_accepted(call(state_.native, kTryConsumeTokens, ids));
    if (!num_accepted) return -1;
    if (PyObject_IsTrue(num_accepted)) return PyList_Append(state_.tokens, id) < 0 ? -1 : 1;
    return call_python(kRaiseIfPoisoned);
  }

  /* By copies, and where it fails, the method of the name does it: a matcher that was poisoned fails again. */
  int32_t fill(Name method, int32_t* row) const {
    const Ref address(PyLong_FromLongLong(reinterpret_cast<intptr_t>(row)));
    if (!address) return -1;
    if (state_.by_copies) return call_python(method, address);
    const Ref none(call(state_.native, kUnsafeComputeMaskPtr, address, table_.row_bytes));
    const Ref is_error(none ? call(state_.native, kIsError) : nullptr);
    if (!is_error) return -1;
    if (PyObject_IsTrue(is_error)) return call_python(method, address);
    state_.mask_depth = PyList_Size(state_.tokens);
    return 0;
  }

  int32_t rollback(int32_t num_tokens) const {
    const intptr_t size = PyList_Size(state_.tokens);
    if (PyList_SetSlice(state_.tokens, size - num_tokens, size, nullptr) < 0) return -1;
    const Ref count(PyLong_FromLongLong(num_tokens));
    const Ref is_undone(count ? call(state_.native, kRollback, count) : nullptr);
    if (!is_undone) return -1;
    return PyObject_IsTrue(is_undone) ? 0 : call_python(kReplay);
  }

 private:
  template <typename... Arguments>
  PyObject* call(PyObject* object, Name name, const Arguments&... arguments) const {
    PyObject* const all[] = {object, arguments...};
    return PyObject_VectorcallMethod(table_.names[name], all, 1 + sizeof...(arguments), nullptr);
  }

  template <typename... Arguments>
  int32_t call_python(Name name, const Arguments&... arguments) const {
    return Ref(call(state_.matcher, name, arguments...)) ? 0 : -1;
  }

  const LLGuidanceCalls& table_;
  State& state_;
};

int32_t accept(const SpecgrammarCalls* self, void* matcher, int32_t token) {
  if (token < 0 || token >= reinterpret_cast<const LLGuidanceCalls*>(self)->vocab_size) return 0;
  const Entry entry;
  if (!entry) return over();
  const Gil gil;
  const int32_t moved = Matcher(self, matcher).accept(token);
  return moved < 0 ? failed() : moved;
}

int32_t fill(const SpecgrammarCalls* self, void* matcher, int32_t* row) {
  const Entry entry;
  if (!entry) return over();
  const Gil gil;
  return Matcher(self, matcher).fill(kFillRow, row) < 0 ? failed() : 0;
}

int32_t rollback(const SpecgrammarCalls* self, void* matcher, int32_t num_tokens) {
  const Entry entry;
  if (!entry) return over();
  const Gil gil;
  return Matcher(self, matcher).rollback(num_tokens) < 0 ? failed() : 0;
}

void reason(const SpecgrammarCalls*, void*, char* text, int64_t size) {
  std::snprintf(text, static_cast<size_t>(size), "%s", last_reason);
}

}  // namespace

extern "C" {

int32_t specgrammar_llguidance_version() { return SPECGRAMMAR_NATIVE_VERSION; }

/* Before the interpreter ends, and without its lock: from now on every call of a matcher fails. Returns when nobody is
   inside of one. */
void specgrammar_llguidance_end() {
  is_over.store(true);
  while (num_inside.load()) std::this_thread::yield();
}

/* Bytes of a `State`, for Python to compare with its `MatcherState`. */
int64_t specgrammar_llguidance_state_size() { return sizeof(State); }

/* A table for one vocabulary; its matchers are the addresses of a `State`. */
SpecgrammarCalls* specgrammar_llguidance_calls(int64_t vocab_size, int64_t num_words) {
  const Gil gil;
  auto* made = new LLGuidanceCalls{{num_words, accept, fill, rollback, reason},
                                   vocab_size,
                                   PyLong_FromLongLong(num_words * static_cast<int64_t>(sizeof(int32_t))),
                                   {}};
  for (int name = 0; name < kNumNames; ++name) made->names[name] = PyUnicode_InternFromString(kNames[name]);
  return &made->calls;
}

void specgrammar_llguidance_free(SpecgrammarCalls* calls) {
  const Gil gil;
  auto* table = reinterpret_cast<LLGuidanceCalls*>(calls);
  Py_DecRef(table->row_bytes);
  for (PyObject* name : table->names) Py_DecRef(name);
  delete table;
}

}  // extern "C"
