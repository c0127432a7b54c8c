/* Following a target that has drawn already: each request along its own draws (`runtime/lazy_walk.py`). */

#pragma once

#include <cstdint>

#include "walk.h"

namespace specgrammar {

/* What the target drew at every node, by flat index. */
struct Draws {
  const int32_t* best;     /* [nodes, num_best]: what was drawn, -1 for nothing, and the next best behind it */
  int64_t num_best;        /* at least 1 */
  const int32_t* num_sure; /* how many of them come in this order for certain; the draw holds in any case */
  const float* logits;     /* [nodes, stride]: what all of it was drawn from greedily; null where that is elsewhere */
  int64_t stride;
  int64_t num_columns;     /* of the logits, padding not counted */
};

/* Why somebody else has to go on at a node; the numbers of `native_follow.Stuck`. */
enum Why : int64_t {
  kUnknown = 0,    /* nothing was drawn, or the matcher contradicts itself */
  kRefusedAll = 1, /* none of the draws that are known is legal */
  kHasRow = 2      /* likewise, and the node's row was filled for another draw */
};

/* Where a request's path goes. */
struct Path {
  int64_t* nodes;    /* as numbers of the request, from the root on; as long as the request has nodes */
  int64_t* tokens;   /* chosen behind each; -1 behind a stop token's node */
  int64_t length;
  int64_t num_moved; /* tokens that the matcher was moved over: all but a stop token */
  int64_t stuck;     /* the node at which somebody else has to go on; -1 where the path has ended */
  Why why;
};

/* Move the matcher along the draws, up to a stop token. A draw that is illegal gives way to the next best that is legal;
   where none of them is, the node gets one of the `rows`, if these have words. `rows` counts the rows that draws are made
   from. Throws std::bad_alloc. */
Outcome follow(const Request& request, const Trees& trees, const Draws& draws, Rows& rows, Path& path, char* reason);

}  // namespace specgrammar
