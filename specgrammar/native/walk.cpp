#include "walk.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace specgrammar {

namespace {

/* A node that the walk stands below, and its parent's row. */
struct Step {
  int64_t node;
  const int32_t* row;
};

class Walk {
 public:
  Walk(const Request& request, const Trees& trees, Rows& rows, RowTaker& taker, std::vector<Step>& path, char* reason)
      : request_(request),
        trees_(trees),
        rows_(rows),
        taker_(taker),
        tokens_(trees.draft_tokens + request.first),
        next_token_(trees.next_token + request.first),
        next_sibling_(trees.next_sibling + request.first),
        status_(rows.status + request.first),
        path_(path),
        reason_(reason) {}

  Outcome run() {
    for (int64_t node = 0; node < request_.num_nodes; ++node) {
      status_[node] = tokens_[node] >= 0 ? kRejected : kPadding;
    }
    if (!has_rows_of(request_, trees_, rows_.num_words, reason_)) return kFailed;
    const Outcome outcome = visit_all();
    const int64_t num_ahead = static_cast<int64_t>(path_.size()) + num_ahead_;
    if (!num_ahead || rollback(num_ahead) || outcome != kWalked) return outcome;
    return failed();
  }

  int64_t token = -1;  // that was refused

 private:
  Outcome visit_all() {
    if (!fill(0)) return failed();
    int64_t node = 0;
    int64_t child = next_token_[0];
    bool is_barren = true;  // while no child of `node` was legal: its row may be empty
    for (;;) {
      while (child >= 0) {
        const int64_t draft = tokens_[child];
        if (!trees_.is_legal(draft, row_)) {
          child = next_sibling_[child];
        } else if (trees_.is_stop(draft)) {
          status_[child] = kEnded;
          is_barren = false;
          child = next_sibling_[child];
        } else {
          const int64_t num_undone = std::exchange(num_ahead_, 0);  // once, also where that fails
          if (num_undone && !rollback(num_undone)) return failed();
          const auto id = static_cast<int32_t>(draft);
          const int32_t moved = request_.calls->accept(request_.calls, request_.matcher, id);
          if (moved <= 0) {
            token = draft;
            return moved ? failed() : kRefused;
          }
          path_.push_back({child, row_});
          if (!fill(child)) return failed();
          node = child;
          is_barren = true;
          child = next_token_[child];
        }
      }
      if (is_barren && is_empty()) {
        if (!node) return kNothingLegal;
        status_[node] = kEnded;
        disown();
      }
      if (path_.empty()) return kWalked;
      row_ = path_.back().row;
      child = next_sibling_[path_.back().node];
      path_.pop_back();
      ++num_ahead_;  // undone at once, when the matcher must move again
      is_barren = false;
    }
  }

  bool fill(int64_t node) {
    const int64_t index = request_.first + node;
    const int64_t row = rows_.dense ? index : taker_.take(index);
    int32_t* words = rows_.words + row * rows_.num_words;
    row_ = words;
    row_number_ = row;
    if (request_.calls->fill(request_.calls, request_.matcher, words) < 0) return false;
    status_[node] = kLive;
    return true;
  }

  bool rollback(int64_t num_tokens) {
    return request_.calls->rollback(request_.calls, request_.matcher, static_cast<int32_t>(num_tokens)) >= 0;
  }

  /* Asked at once: what is undone next may fail as well. */
  Outcome failed() {
    ask_reason(request_, reason_);
    return kFailed;
  }

  bool is_empty() const {
    return std::all_of(row_, row_ + rows_.num_words, [](int32_t word) { return !word; });
  }

  /* The row that was filled last belongs to nobody. */
  void disown() {
    if (rows_.dense) {
      std::fill_n(rows_.words + row_number_ * rows_.num_words, rows_.num_words, -1);
    } else {
      rows_.owners[row_number_] = -1;
    }
  }

  const Request& request_;
  const Trees& trees_;
  Rows& rows_;
  RowTaker& taker_;
  const int64_t* tokens_;
  const int64_t* next_token_;
  const int64_t* next_sibling_;
  int8_t* status_;
  std::vector<Step>& path_;
  char* reason_;
  const int32_t* row_ = nullptr;  // of the node whose children are looked at
  int64_t row_number_ = 0;
  int64_t num_ahead_ = 0;  // steps that the matcher is ahead of the path
};

}  // namespace

bool has_rows_of(const Request& request, const Trees& trees, int64_t num_words, char* reason) {
  const int64_t own = request.calls->num_words;
  if (own == num_words && own >= trees.num_words()) return true;
  std::snprintf(reason, kReasonSize, "its rows have %lld words, those of the step %lld, the vocabulary needs %lld",
                static_cast<long long>(own), static_cast<long long>(num_words),
                static_cast<long long>(trees.num_words()));
  return false;
}

void ask_reason(const Request& request, char* reason) {
  *reason = 0;  // a backend may give none
  request.calls->reason(request.calls, request.matcher, reason, kReasonSize);
  reason[kReasonSize - 1] = 0;  // or one without an end
}

void Gaps::close(Rows& rows) {
  const auto end_of_gaps = gaps_.begin() + static_cast<std::ptrdiff_t>(num_.load());
  std::sort(gaps_.begin(), end_of_gaps, [](const Span& one, const Span& other) { return one.first < other.first; });
  int64_t end = rows.num_rows.load();
  for (auto gap = gaps_.begin(), behind = end_of_gaps; gap != behind;) {
    const Span& last = *(behind - 1);
    if (last.first == last.end) {
      --behind;
    } else if (last.end == end) {
      end = last.first;
      --behind;
    } else if (gap->first == gap->end) {
      ++gap;
    } else {
      --end;  // a row that was taken
      std::copy_n(rows.words + end * rows.num_words, rows.num_words, rows.words + gap->first * rows.num_words);
      rows.owners[gap->first++] = rows.owners[end];
    }
  }
  rows.num_rows.store(end);
}

Outcome walk(const Request& request, const Trees& trees, Rows& rows, RowTaker& taker, char* reason, int64_t& refused) {
  thread_local std::vector<Step> path;
  path.clear();
  path.reserve(static_cast<size_t>(request.num_nodes));  // while the matcher is as it was found: there may be no memory
  taker.expect(request.num_nodes);
  Walk walk(request, trees, rows, taker, path, reason);
  const Outcome outcome = walk.run();
  refused = walk.token;
  return outcome;
}

}  // namespace specgrammar
