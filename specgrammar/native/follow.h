/* Following a target that has drawn already: each request along its own draws (`runtime/lazy_walk.py`). */

#pragma once

#include <algorithm>
#include <cstdint>

#include "walk.h"

namespace specgrammar {

/* What the target drew at every node, by flat index. */
struct Draws {
  const void* best;        /* [nodes, num_best]: what was drawn, -1 for nothing, and the next best behind it */
  bool is_short;           /* these are uint16_t, of which the largest stands for -1, and not int32_t */
  int64_t num_best;        /* at least 1 */
  const int32_t* num_sure; /* how many of them come in this order for certain; the draw holds in any case */
  const float* logits;     /* [nodes, stride]: what all of it was drawn from greedily; null where that is elsewhere */
  int64_t stride;
  int64_t num_columns;     /* of the logits, padding not counted */

  int64_t token(int64_t index, int64_t rank) const {
    const int64_t place = index * num_best + rank;
    if (!is_short) return static_cast<const int32_t*>(best)[place];
    const uint16_t id = static_cast<const uint16_t*>(best)[place];
    return id == UINT16_MAX ? -1 : id;
  }
};

/* Why somebody else has to go on at a node; `native_follow.py` has the same numbers. */
enum Why : int64_t {
  kUnknown = 0,    /* nothing was drawn, or the matcher contradicts itself */
  kRefusedAll = 1, /* none of the draws that are known is legal */
  kHasRow = 2      /* likewise, and the node's row was filled: the path ends with it, a token is to be drawn there */
};

/* Where a request's path goes: a record of numbers that Python reads (`trees/paths.py`). First come its nodes, as
   numbers of the request from the root on, as many tokens that were chosen behind them (-1 behind the node of a stop
   token, and where one is still to be drawn), then what is named here. */
class Path {
 public:
  Path(int64_t* record, int64_t size)
      : nodes_(record),
        tokens_(record + (size - kNumNamed) / 2),
        num_nodes_((size - kNumNamed) / 2),
        length_(record[size - 6]),
        num_accepted_(record[size - 5]),
        bonus_(record[size - 4]),
        num_moved_(record[size - 3]),
        stuck_(record[size - 2]),
        why_(record[size - 1]) {}

  /* Empty. */
  void begin() {
    std::fill_n(nodes_, num_nodes_, -1);
    nodes_[0] = length_ = num_accepted_ = num_moved_ = 0;
    bonus_ = stuck_ = why_ = -1;
  }

  /* Go on over a node. */
  void add(int64_t node, int64_t token) {
    nodes_[length_] = node;
    tokens_[length_] = bonus_ = token;
    num_accepted_ = length_++;
  }

  /* The matcher was moved over the last token, which ends no sequence. */
  void moved() { ++num_moved_; }

  /* Somebody else has to go on at a node. */
  void stop(int64_t node, Why why) {
    stuck_ = node;
    why_ = why;
  }

 private:
  static constexpr int kNumNamed = 6;

  int64_t* nodes_;
  int64_t* tokens_;
  int64_t num_nodes_;
  int64_t& length_;
  int64_t& num_accepted_; /* drafts: all nodes but the root */
  int64_t& bonus_;        /* the last token, -1 for none */
  int64_t& num_moved_;    /* tokens that the matcher was moved over: all but a stop token */
  int64_t& stuck_;        /* the node at which somebody else has to go on; -1 where the path has ended */
  int64_t& why_;
};

/* Move the matcher along the draws, up to a stop token. A draw that is illegal gives way to the next best that is
   legal; where none of them is, the node gets one of the `rows`, if these have words. `rows` counts the rows that draws
   are made from, and gets the nodes' statuses as far as the grammar need not be asked. Throws std::bad_alloc. */
Outcome follow(const Request& request, const Trees& trees, const Draws& draws, Rows& rows, Path& path, char* reason);

}  // namespace specgrammar
