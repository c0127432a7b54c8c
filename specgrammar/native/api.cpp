/* What Python calls (see `library.py`): plain C, arrays by address. */

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
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

using specgrammar::Outcome;
using specgrammar::Pool;
using specgrammar::Request;
using specgrammar::Rows;
using specgrammar::Trees;
using specgrammar::best_legal;

namespace {

/* What Python gives of a request's matcher. */
struct Native {
  const SpecgrammarCalls* calls;
  void* matcher;
  uint64_t grammar; /* matchers with the same number read the same compiled grammar */
};

/* Which requests of a batch a call is about, and how their grammars are moved. */
struct Requests {
  int64_t count;
  const int64_t* numbers;
  const Native* natives;
  const int64_t* cu_nodes;

  Request operator[](int64_t i) const {
    const int64_t first = cu_nodes[numbers[i]];
    return {natives[i].calls, natives[i].matcher, first, cu_nodes[numbers[i] + 1] - first};
  }

  /* Those of one grammar behind the first of them, so that what a fill reads is in the caches. */
  std::vector<int64_t> by_grammar() const {
    std::vector<int64_t> order(static_cast<size_t>(count)), leader(order.size());
    std::iota(order.begin(), order.end(), 0);
    const auto sort_by = [&order](const auto& key) {
      std::sort(order.begin(), order.end(), [&key](int64_t left, int64_t right) {
        return std::make_pair(key(left), left) < std::make_pair(key(right), right);
      });
    };
    sort_by([this](int64_t i) { return natives[i].grammar; });
    int64_t first = order.empty() ? 0 : order.front();
    for (const int64_t i : order) {
      if (natives[i].grammar != natives[first].grammar) first = i;
      leader[static_cast<size_t>(i)] = first;
    }
    sort_by([&leader](int64_t i) { return leader[static_cast<size_t>(i)]; });
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

/* Call `work` for each request, on as many threads of the pool as asked. */
template <typename Work>
void for_each(const Requests& requests, void* pool, int32_t num_threads, const Work& work) {
  std::vector<int64_t> order;
  try {
    order = requests.by_grammar();
  } catch (const std::bad_alloc&) {  // then they are taken as they come
  }
  Shares shares(requests.count, pool ? num_threads : 1);
  const auto take = [&] {
    shares.take([&](int64_t place) { work(order.empty() ? place : order[static_cast<size_t>(place)]); });
  };
  if (pool && num_threads > 1) {
    static_cast<Pool*>(pool)->run(num_threads, std::ref(take));  // refers to it: needs no memory
  } else {
    take();
  }
}

/* What `work` returns; a request that there is no memory for has failed. */
template <typename Work>
Outcome outcome_of(char* reason, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    std::snprintf(reason, specgrammar::kReasonSize, "out of memory");
    return specgrammar::kFailed;
  }
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
  static_cast<Pool*>(pool)->run(num_threads, [] {});
}

/* A call will want threads in a moment. */
void specgrammar_pool_rouse(void* pool, int32_t num_threads) { static_cast<Pool*>(pool)->rouse(num_threads); }

/* Every call on a batch begins with its requests, its trees, its vocabulary and its threads, and ends with how the
   requests ended. numbers[i], natives[i]: which request of the batch it is, and how its grammar is moved.
   outcomes[i], refused[i], reasons[i * kReasonSize]: how it ended, the token that its matcher refused, why it
   failed. */

/* Walk some requests of a batch; returns the number of the row behind the last one handed out.

   All nodes of a request that did not end well are dead; its rows belong to nobody, dense ones are all ones. */
int64_t specgrammar_walk(int64_t num_requests, const int64_t* numbers, const Native* natives, const int64_t* cu_nodes,
                         const int64_t* draft_tokens, const int64_t* next_token, const int64_t* next_sibling,
                         int64_t vocab_size, const int64_t* stop_ids, int64_t num_stop_ids, void* pool,
                         int32_t num_threads, int32_t* words, int64_t num_words, int32_t* owners, int8_t* status,
                         int64_t first_row, int32_t dense, int32_t* outcomes, int64_t* refused, char* reasons) {
  const Requests requests{num_requests, numbers, natives, cu_nodes};
  const Trees trees{draft_tokens, next_token, next_sibling, vocab_size, stop_ids, num_stop_ids};
  Rows rows{words, num_words, owners, status, {first_row}, dense != 0};
  std::atomic<bool> all_well{true};
  for_each(requests, pool, num_threads, [&](int64_t i) {
    const Request request = requests[i];
    char* const reason = reasons + i * specgrammar::kReasonSize;
    outcomes[i] = outcome_of(reason, [&] { return walk(request, trees, rows, reason, refused + i); });
    if (outcomes[i] == specgrammar::kWalked) return;
    all_well.store(false, std::memory_order_relaxed);
    std::fill_n(status + request.first, request.num_nodes, specgrammar::kPadding);
    if (dense) std::fill_n(words + request.first * num_words, request.num_nodes * num_words, -1);
  });
  const int64_t num_rows = rows.num_rows.load();
  if (!all_well.load() && !dense) {
    for (int64_t row = first_row; row < num_rows; ++row) {
      if (owners[row] >= 0 && status[owners[row]] != specgrammar::kLive) owners[row] = -1;
    }
  }
  return num_rows;
}

/* Move the matchers of some requests along what the target drew; returns how many rows are drawn from.

   best, num_sure, logits: by flat index of the whole batch; see `Draws` and `follow`.
   words, owners: rows for one node of each request that is drawn from elsewhere, and which node that is; may be null.
   paths: for each request of the batch a record of `size` numbers (see `Path`) with an empty path, which stays empty
   where a request fails. status: of each node, as far as the grammar need not be asked. */
int64_t specgrammar_follow(int64_t num_requests, const int64_t* numbers, const Native* natives, const int64_t* cu_nodes,
                           const int64_t* draft_tokens, const int64_t* next_token, const int64_t* next_sibling,
                           int64_t vocab_size, const int64_t* stop_ids, int64_t num_stop_ids, void* pool,
                           int32_t num_threads, const int32_t* best, int64_t num_best, const int32_t* num_sure,
                           const float* logits, int64_t stride, int64_t num_columns, int32_t* words,
                           int64_t num_words, int32_t* owners, int64_t* paths, int64_t size, int8_t* status,
                           int32_t* outcomes, int64_t* /* refused */, char* reasons) {
  const Requests requests{num_requests, numbers, natives, cu_nodes};
  const Trees trees{draft_tokens, next_token, next_sibling, vocab_size, stop_ids, num_stop_ids};
  const specgrammar::Draws draws{best, num_best, num_sure, logits, stride, num_columns};
  Rows rows{words, num_words, owners, status, {0}, false};
  for_each(requests, pool, num_threads, [&](int64_t i) {
    specgrammar::Path path(paths + numbers[i] * size, size);
    char* const reason = reasons + i * specgrammar::kReasonSize;
    outcomes[i] = outcome_of(reason, [&] { return follow(requests[i], trees, draws, rows, path, reason); });
    if (outcomes[i] != specgrammar::kWalked) path.clear();
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
