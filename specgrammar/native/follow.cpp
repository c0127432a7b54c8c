#include "follow.h"

#include <algorithm>
#include <vector>

#include "draw.h"

namespace specgrammar {

namespace {

/* Draws that are tried before a row is filled, which costs as much as a few refusals. Where a greedy draw of
   SmolLM2-135M-Instruct is illegal the next best is legal in 3 of 10 cases; where it is not, one of the two behind it
   is in 1 of 10. */
constexpr int64_t kMostTried = 2;

/* What a choice at a node comes to. */
enum Choice { kMoved, kEnd, kStuck, kFailedToMove };

/* Memory for a row, kept from call to call. */
std::vector<int32_t>& scratch() {
  thread_local std::vector<int32_t> row;
  return row;
}

class Follower {
 public:
  Follower(const Request& request, const Trees& trees, const Draws& draws, Rows& rows, Path& path)
      : request_(request),
        trees_(trees),
        draws_(draws),
        rows_(rows),
        path_(path),
        tokens_(trees.draft_tokens + request.first),
        next_token_(trees.next_token + request.first),
        next_sibling_(trees.next_sibling + request.first),
        row_(scratch()) {}

  Outcome run() {
    for (int64_t node = 0; node >= 0; node = child_with(node, token_)) {
      switch (choose(node)) {
        case kFailedToMove:
          return kFailed;
        case kStuck:
          if (why_ == kHasRow) path_.add(node, -1);
          path_.stop(node, why_);
          return kWalked;
        case kEnd:
          path_.add(node, token_);
          if (const int64_t child = child_with(node, token_); child >= 0) path_.add(child, -1);
          return kWalked;
        case kMoved:
          path_.add(node, token_);
          path_.moved();
      }
    }
    return kWalked;
  }

 private:
  Choice choose(int64_t node) {
    const int64_t index = request_.first + node;
    if (draws_.token(index, 0) < 0) return stuck(kUnknown);
    const int64_t num_known = draws_.logits ? 1 : std::max(draws_.num_sure[index], 1);
    int64_t rank = 0;
    for (; rank < std::min(num_known, kMostTried) && is_text(draws_.token(index, rank)); ++rank) {
      if (const int32_t moved = accept(draws_.token(index, rank))) return moved < 0 ? kFailedToMove : kMoved;
    }
    if (rank == num_known && !draws_.logits && !rows_.words) return stuck(kRefusedAll);
    return choose_by_row(index);
  }

  /* The best token that is legal. A row tells all of them, and it alone tells what ends a sequence. */
  Choice choose_by_row(int64_t index) {
    row_.resize(static_cast<size_t>(request_.calls->num_words));
    if (request_.calls->fill(request_.calls, request_.matcher, row_.data()) < 0) return kFailedToMove;
    token_ = best_by_row(index);
    if (token_ < 0) return stuck(keep_row(index) ? kHasRow : kRefusedAll);
    if (trees_.is_stop(token_)) return kEnd;
    const int32_t moved = accept(token_);
    return moved < 0 ? kFailedToMove : moved ? kMoved : stuck(kUnknown);
  }

  /* -1 for none. */
  int64_t best_by_row(int64_t index) const {
    if (draws_.logits) {
      const float* const logits = draws_.logits + index * draws_.stride;
      const int64_t token = best_legal(logits, row_.data(), draws_.num_columns);
      if (token >= 0) rows_.num_rows.fetch_add(1, std::memory_order_relaxed);
      return token;
    }
    for (int64_t rank = 0; rank < std::max(draws_.num_sure[index], 1); ++rank) {
      if (const int64_t token = draws_.token(index, rank); trees_.is_legal(token, row_.data())) return token;
    }
    return -1;
  }

  /* False for a row that allows nothing, and where none are kept. */
  bool keep_row(int64_t index) {
    const auto is_empty = [](int32_t word) { return !word; };
    if (!rows_.words || std::all_of(row_.begin(), row_.end(), is_empty)) return false;
    const int64_t row = rows_.num_rows.fetch_add(1, std::memory_order_relaxed);
    rows_.owners[row] = static_cast<int32_t>(index);
    std::copy(row_.begin(), row_.end(), rows_.words + row * rows_.num_words);
    return true;
  }

  Choice stuck(Why why) {
    why_ = why;
    return kStuck;
  }

  int32_t accept(int64_t token) {
    token_ = token;
    return request_.calls->accept(request_.calls, request_.matcher, static_cast<int32_t>(token));
  }

  /* Not a stop token, which the calls do not take, nor an id outside the vocabulary. */
  bool is_text(int64_t token) const {
    return token >= 0 && token < trees_.vocab_size && !trees_.is_stop(token);
  }

  int64_t child_with(int64_t node, int64_t token) const {
    int64_t child = next_token_[node];
    while (child >= 0 && tokens_[child] != token) child = next_sibling_[child];
    return child;
  }

  const Request& request_;
  const Trees& trees_;
  const Draws& draws_;
  Rows& rows_;
  Path& path_;
  const int64_t* tokens_;
  const int64_t* next_token_;
  const int64_t* next_sibling_;
  std::vector<int32_t>& row_;  // of the node where the draw was refused
  int64_t token_ = -1;         // that was chosen last
  Why why_ = kUnknown;         // the walk is stuck
};

}  // namespace

Outcome follow(const Request& request, const Trees& trees, const Draws& draws, Rows& rows, Path& path, char* reason) {
  for (int64_t node = 0; node < request.num_nodes; ++node) {
    const int64_t index = request.first + node;
    rows.status[index] = node ? trees.open_status(trees.draft_tokens[index]) : kFree;
  }
  if (!has_rows_of(request, trees, rows.words ? rows.num_words : trees.num_words(), reason)) return kFailed;
  const Outcome outcome = Follower(request, trees, draws, rows, path).run();
  if (outcome == kFailed) ask_reason(request, reason);
  return outcome;
}

}  // namespace specgrammar
