#include "follow.h"

#include <algorithm>
#include <vector>

namespace specgrammar {

namespace {

/* What a choice at a node comes to. */
enum Choice { kMoved, kNobodyMoved, kAllRefused, kFailedToMove };

/* Memory for a row, kept from call to call. */
std::vector<int32_t>& scratch() {
  thread_local std::vector<int32_t> row;
  return row;
}

class Follower {
 public:
  Follower(const Request& request, const Trees& trees, const Draws& draws)
      : request_(request),
        trees_(trees),
        draws_(draws),
        tokens_(trees.draft_tokens + request.first),
        next_token_(trees.next_token + request.first),
        next_sibling_(trees.next_sibling + request.first),
        row_(scratch()) {}

  Outcome run(Path& path) {
    int64_t node = 0;
    while (node >= 0) {
      int64_t token = -1;
      switch (choose(node, token)) {
        case kFailedToMove:
          return kFailed;
        case kAllRefused:
          path.is_refused = true;
          [[fallthrough]];
        case kNobodyMoved:
          path.stuck = request_.first + node;
          return kWalked;
        case kMoved:
          break;
      }
      path.nodes[path.length] = request_.first + node;
      path.tokens[path.length++] = token;
      node = child_with(node, token);
    }
    return kWalked;
  }

 private:
  Choice choose(int64_t node, int64_t& token) {
    token = draws_.best[(request_.first + node) * draws_.num_best];
    if (!is_text(token)) return kNobodyMoved;
    const int32_t moved = request_.calls->accept(request_.calls, request_.matcher, static_cast<int32_t>(token));
    if (moved) return moved < 0 ? kFailedToMove : kMoved;
    return choose_next_best(node, token);
  }

  /* The best token that is legal. A row costs as much as a few refusals, and tells all of them. */
  Choice choose_next_best(int64_t node, int64_t& token) {
    const int64_t index = request_.first + node;
    const int32_t* best = draws_.best + index * draws_.num_best;
    const int32_t* end = best + draws_.num_sure[index];
    if (end - best < 2) return kAllRefused;
    row_.resize(static_cast<size_t>(request_.calls->num_words));
    if (request_.calls->fill(request_.calls, request_.matcher, row_.data()) < 0) return kFailedToMove;
    const int32_t* legal = std::find_if(best + 1, end, [this](int32_t other) {
      return trees_.is_legal(other, row_.data());
    });
    if (legal == end) return kAllRefused;
    if (!is_text(*legal)) return kNobodyMoved;
    token = *legal;
    const int32_t moved = request_.calls->accept(request_.calls, request_.matcher, static_cast<int32_t>(token));
    return moved < 0 ? kFailedToMove : moved ? kMoved : kNobodyMoved;
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
  const int64_t* tokens_;
  const int64_t* next_token_;
  const int64_t* next_sibling_;
  std::vector<int32_t>& row_;  // of the node where the draw was refused
};

}  // namespace

Outcome follow(const Request& request, const Trees& trees, const Draws& draws, Path& path, char* reason) {
  if (!has_rows_of(request, (trees.vocab_size + 31) / 32, reason)) return kFailed;
  const Outcome outcome = Follower(request, trees, draws).run(path);
  if (outcome == kFailed) request.calls->reason(request.calls, request.matcher, reason, kReasonSize);
  return outcome;
}

}  // namespace specgrammar
