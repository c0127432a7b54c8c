/* What Python calls (see `library.py`): plain C, arrays by address. */

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "draw.h"
#include "follow.h"
#include "pool.h"
#include "walk.h"

using specgrammar::Gaps;
using specgrammar::Outcome;
using specgrammar::Pool;
using specgrammar::Request;
using specgrammar::RowTaker;
using specgrammar::Rows;
using specgrammar::Trees;
using specgrammar::best_legal;

namespace {

/* A thread of several takes so many: their owners are as long as a line of the caches. */
constexpr int64_t kRowsAtOnce = 16;

/* What Python gives of a request's matcher. */
struct Native {
  const SpecgrammarCalls* calls;
  void* matcher;
  uint64_t grammar; /* matchers with the same number read the same compiled grammar */
};

/* How a request ended. */
struct Result {
  int64_t outcome;
  int64_t what; /* kRefused: the token; kFailed: where the text lies that says why, 0 for none */
};

/* What every call on a batch is about: which requests it has, how their grammars are moved, their trees and vocabulary,
   and where it tells how each ended. Python writes it as one array of 64-bit numbers (see `native_batch.py`). */
struct Batch {
  int64_t count;
  const int64_t* numbers; /* which requests of the whole batch */
  const Native* natives;
  const int64_t* cu_nodes; /* of the whole batch, like the rest */
  Trees trees;
  Result* results;

  Request operator[](int64_t i) const {
    const int64_t first = cu_nodes[numbers[i]];
    return {natives[i].calls, natives[i].matcher, first, cu_nodes[numbers[i] + 1] - first};
  }

  /* Those of one grammar behind the first of them, so that what a fill reads is in the caches. */
  std::vector<int64_t> by_grammar() const {
    const auto num = static_cast<size_t>(count);
    std::vector<size_t> group(num), ends;  // of grammars, as they come
    const auto num_bits = static_cast<int>(std::bit_width(2 * num));
    std::vector<size_t> first(size_t{1} << num_bits, num);  // a hash table: which request has a grammar first
    const auto place_of = [&](uint64_t grammar) {
      size_t place = grammar * 0x9E3779B97F4A7C15 >> (64 - num_bits);
      while (first[place] < num && natives[first[place]].grammar != grammar) place = (place + 1) % first.size();
      return place;
    };
    for (size_t i = 0; i < num; ++i) {
      size_t& found = first[place_of(natives[i].grammar)];
      if (found == num) {
        found = i;
        group[i] = ends.size();
        ends.push_back(0);
      }
      group[i] = group[found];
      ++ends[group[i]];
    }
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    std::vector<int64_t> order(num);
    for (size_t i = num; i-- > 0;) order[--ends[group[i]]] = static_cast<int64_t>(i);
    return order;
  }
};

/* Places 0 to `count` for some threads: each takes from a part of its own first, then what is left of the others'. */
class Shares {
 public:
  Shares(int64_t count, int num_threads) : num_parts_(std::clamp(num_threads, 1, specgrammar::kMostThreads)) {
    for (int part = 0; part < num_parts_; ++part) {
      parts_[part].next.store(count * part / num_parts_);
      parts_[part].end = count * (part + 1) / num_parts_;
    }
  }

  template <typename Work>
  void take(const Work& work) {
    const int own = num_takers_.fetch_add(1);
    for (int turn = 0; turn < num_parts_; ++turn) {
      Part& part = parts_[(own + turn) % num_parts_];
      for (int64_t place; (place = part.next.fetch_add(1, std::memory_order_relaxed)) < part.end;) work(place);
    }
  }

 private:
  struct alignas(64) Part {  // a line of the caches: threads do not wait for each other's
    std::atomic<int64_t> next;
    int64_t end;
  };

  int num_parts_;
  std::atomic<int> num_takers_{0};
  std::array<Part, specgrammar::kMostThreads> parts_;
};

/* Call `work` for each request, on as many threads of the pool as asked; it is also given what its thread has made. */
template <typename Make, typename Work>
void for_each(const Batch& batch, void* pool, int32_t num_threads, const Make& make, const Work& work) {
  std::vector<int64_t> order;
  try {
    order = batch.by_grammar();
  } catch (const std::bad_alloc&) {  // then they are taken as they come
  }
  Shares shares(batch.count, pool ? num_threads : 1);
  const auto take = [&] {
    auto made = make();
    shares.take([&](int64_t place) { work(made, order.empty() ? place : order[static_cast<size_t>(place)]); });
  };
  if (pool && num_threads > 1) {
    static_cast<Pool*>(pool)->run(num_threads, std::ref(take));  // refers to it: needs no memory
  } else {
    take();
  }
}

template <typename Work>
void for_each(const Batch& batch, void* pool, int32_t num_threads, const Work& work) {
  for_each(batch, pool, num_threads, [] { return 0; }, [&work](int, int64_t i) { work(i); });
}

/* Note how a request ends, which `work` returns; one that there is no memory for has failed. */
template <typename Work>
bool ends_well(Result& result, const Work& work) {
  char reason[specgrammar::kReasonSize];
  try {
    result.outcome = work(reason, result.what);
  } catch (const std::bad_alloc&) {
    std::snprintf(reason, sizeof reason, "out of memory");
    result.outcome = specgrammar::kFailed;
  }
  if (result.outcome == specgrammar::kFailed) result.what = reinterpret_cast<int64_t>(strdup(reason));
  return result.outcome == specgrammar::kWalked;
}

}  // namespace

extern "C" {

int32_t specgrammar_version() { return SPECGRAMMAR_NATIVE_VERSION; }

void* specgrammar_pool_new(int32_t num_threads) {
  try {
    return new Pool(num_threads);
  } catch (const std::exception&) {  // the system has no thread
    return nullptr;
  }
}

/* How many threads there really are. */
int32_t specgrammar_pool_num_threads(void* pool) { return static_cast<Pool*>(pool)->num_threads(); }

/* A forked child keeps what is left of its parent's pool: ids of threads that are not there may be those of others. */
void specgrammar_pool_free(void* pool) {
  auto* const made = static_cast<Pool*>(pool);
  if (made->is_here()) delete made;
}

/* What a hand-over costs: wake threads for nothing. */
void specgrammar_pool_wake(void* pool, int32_t num_threads) {
  static_cast<Pool*>(pool)->wake(num_threads);
}

/* A call will want threads in a moment. */
void specgrammar_pool_rouse(void* pool, int32_t num_threads) { static_cast<Pool*>(pool)->rouse(num_threads); }

/* A text of a `Result` was read. */
void specgrammar_text_free(char* text) { std::free(text); }

/* Walk some requests of a batch, on some threads of a pool; returns the number of the row behind the last one handed
   out.

   All nodes of a request that did not end well are dead; its rows belong to nobody, dense ones are all ones. */
int64_t specgrammar_walk(const Batch* batch, void* pool, int32_t num_threads, int32_t* words, int64_t num_words,
                         int32_t* owners, int8_t* status, int64_t first_row, int32_t dense) {
  Rows rows{words, num_words, owners, status, {first_row}, dense != 0};
  std::atomic<bool> all_well{true};
  Gaps gaps;
  const auto make_taker = [&] { return RowTaker(rows, gaps, pool && num_threads > 1 ? kRowsAtOnce : 1); };
  for_each(*batch, pool, num_threads, make_taker, [&](RowTaker& taker, int64_t i) {
    const Request request = (*batch)[i];
    const auto work = [&](char* reason, int64_t& refused) {
      return walk(request, batch->trees, rows, taker, reason, refused);
    };
    if (ends_well(batch->results[i], work)) return;
    all_well.store(false, std::memory_order_relaxed);
    std::fill_n(status + request.first, request.num_nodes, specgrammar::kPadding);
    if (dense) std::fill_n(words + request.first * num_words, request.num_nodes * num_words, -1);
  });
  gaps.close(rows);
  const int64_t num_rows = rows.num_rows.load();
  if (!all_well.load() && !dense) {
    for (int64_t row = first_row; row < num_rows; ++row) {
      if (owners[row] >= 0 && status[owners[row]] != specgrammar::kLive) owners[row] = -1;
    }
  }
  return num_rows;
}

/* Move the matchers of some requests along what the target drew; returns how many rows are drawn from.

   best, is_short, num_sure, logits: by flat index of the whole batch; see `Draws` and `follow`.
   words, owners: rows for one node of each request that is drawn from elsewhere, and which node that is; may be null.
   paths: for each request of the batch a record of `size` numbers (see `Path`); the path of one that fails is empty.
   status: of each node, as far as the grammar need not be asked. */
int64_t specgrammar_follow(const Batch* batch, void* pool, int32_t num_threads, const void* best, int32_t is_short,
                           int64_t num_best, const int32_t* num_sure, const float* logits, int64_t stride,
                           int64_t num_columns, int32_t* words, int64_t num_words, int32_t* owners, int64_t* paths,
                           int64_t size, int8_t* status) {
  const specgrammar::Draws draws{best, is_short != 0, num_best, num_sure, logits, stride, num_columns};
  Rows rows{words, num_words, owners, status, {0}, false};
  for_each(*batch, pool, num_threads, [&](int64_t i) {
    specgrammar::Path path(paths + batch->numbers[i] * size, size);
    path.begin();
    const auto work = [&](char* reason, int64_t&) {
      return follow((*batch)[i], batch->trees, draws, rows, path, reason);
    };
    if (!ends_well(batch->results[i], work)) path.begin();
  });
  return rows.num_rows.load();
}

/* Draw greedily under rows of a bitmask.

   words: [num_rows, num_words]. owners[i]: which row of logits row i is for, -1 for a row that nobody uses.
   logits: rows of `stride` values. tokens[i]: see `best_legal`. */
void specgrammar_draw(int64_t num_rows, const int32_t* words, int64_t num_words, const int32_t* owners,
                      const float* logits, int64_t stride, int64_t vocab_size, int64_t* tokens) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t owner = owners[row];
    tokens[row] = owner < 0 ? -1 : best_legal(logits + owner * stride, words + row * num_words, vocab_size);
  }
}

}  // extern "C"
