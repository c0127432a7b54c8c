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
};

/* Where a request's path goes. */
struct Path {
  int64_t* nodes;  /* flat, from the root on; as long as the request has nodes */
  int64_t* tokens; /* chosen behind each */
  int64_t length;  /* nodes whose choice the grammar was moved over */
  int64_t stuck;   /* the node (flat) at which somebody else has to go on; -1 where the path has ended */
  bool is_refused; /* none of the draws that are known there is legal */
};

/* Move the matcher along the draws. A draw that is illegal gives way to the next best that is legal. The way stops at a
   node where none is, where a stop token is drawn, or an id outside the vocabulary. Throws std::bad_alloc. */
Outcome follow(const Request& request, const Trees& trees, const Draws& draws, Path& path, char* reason);

}  // namespace specgrammar
