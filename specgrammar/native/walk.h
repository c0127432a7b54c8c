/* The walk over the draft trees of a batch: every live node gets a row, and every node a status. */

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "matcher_calls.h"
#include "pool.h"

namespace specgrammar {

/* What a node is; the numbers of `protocols.grammar.NodeStatus`. */
enum Status : int8_t { kPadding = 0, kRejected = 1, kEnded = 2, kFree = 3, kLive = 4 };

/* How a request's walk ended. */
enum Outcome : int32_t { kWalked = 0, kNothingLegal = 1, kRefused = 2, kFailed = 3 };

constexpr int64_t kReasonSize = 400;

/* A request that is walked. */
struct Request {
  const SpecgrammarCalls* calls;
  void* matcher;
  int64_t first;     /* the flat index of its root */
  int64_t num_nodes;
};

/* The same for all requests of a step. Links count from a request's root, as in `trees.tree`. */
struct Trees {
  const int64_t* draft_tokens;
  const int64_t* next_token;
  const int64_t* next_sibling;
  int64_t vocab_size;
  const int64_t* stop_ids;
  int64_t num_stop_ids;

  bool is_stop(int64_t token) const {
    return std::find(stop_ids, stop_ids + num_stop_ids, token) != stop_ids + num_stop_ids;
  }

  /* Words of a row that speaks of all tokens. */
  int64_t num_words() const { return (vocab_size + 31) / 32; }

  /* What a node with a token is as far as the grammar need not be asked. */
  Status open_status(int64_t token) const {
    if (token < 0) return kPadding;
    return token >= vocab_size ? kRejected : is_stop(token) ? kEnded : kFree;
  }

  /* Whether a row allows a token, which may be any number. */
  bool is_legal(int64_t token, const int32_t* row) const {
    return token >= 0 && token < vocab_size && (row[token >> 5] >> (token & 31) & 1);
  }
};

/* Where walks write. In the compact layout rows are handed out in the order in which nodes are reached; in the dense
   one node i has row i. */
struct Rows {
  int32_t* words;
  int64_t num_words;
  int32_t* owners;  /* the node of each row, -1 for none (compact) */
  int8_t* status;   /* of each node */
  std::atomic<int64_t> num_rows;
  bool dense;
};

/* Rows from `first` to the one before `end`. */
struct Span {
  int64_t first = 0;
  int64_t end = 0;
};

/* Compact rows that were reserved and not taken; the last rows are moved there when all threads are done. */
class Gaps {
 public:
  /* By one thread, which has no more to take. */
  void add(const Span& left) { gaps_[num_.fetch_add(1, std::memory_order_relaxed)] = left; }

  void close(Rows& rows);

 private:
  std::array<Span, kMostThreads> gaps_;
  std::atomic<size_t> num_{0};
};

/* Hands out compact rows to one thread, a few at a time: with each by itself, threads would wait for each other's
   counts and owners. */
class RowTaker {
 public:
  RowTaker(Rows& rows, Gaps& gaps, int64_t num_at_once) : rows_(rows), gaps_(gaps), num_at_once_(num_at_once) {}
  RowTaker(const RowTaker&) = delete;
  RowTaker& operator=(const RowTaker&) = delete;
  ~RowTaker() { gaps_.add(left_); }

  /* A request comes that takes a row for each node at most: only so many are reserved, and there are always enough. */
  void expect(int64_t num_nodes) { num_expected_ += num_nodes; }

  int64_t take(int64_t node) {
    if (left_.first == left_.end) {
      const int64_t num = std::min(num_at_once_, num_expected_);
      left_.first = rows_.num_rows.fetch_add(num, std::memory_order_relaxed);
      left_.end = left_.first + num;
      num_expected_ -= num;
    }
    rows_.owners[left_.first] = static_cast<int32_t>(node);
    return left_.first++;
  }

 private:
  Rows& rows_;
  Gaps& gaps_;
  int64_t num_at_once_;
  int64_t num_expected_ = 0;  // of which none is reserved yet
  Span left_;                 // reserved and not taken
};

/* Whether a matcher's rows are as long as those of the step, and these are long enough for the vocabulary; else
   `reason` (kReasonSize bytes) says so. */
bool has_rows_of(const Request& request, const Trees& trees, int64_t num_words, char* reason);

/* Why a call failed: what the backend says goes to `reason` (kReasonSize bytes), empty if that is nothing. */
void ask_reason(const Request& request, char* reason);

/* Walk one request; the matcher is left as it was found. `reason` (kReasonSize bytes) says why it failed, `refused`
   which token its matcher refused.
   Throws std::bad_alloc before it moves. */
Outcome walk(const Request& request, const Trees& trees, Rows& rows, RowTaker& taker, char* reason, int64_t& refused);

}  // namespace specgrammar
