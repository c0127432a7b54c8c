/* Greedy draws from rows of logits under rows of a bitmask, both in the host's memory. */

#pragma once

#include <cstdint>

namespace specgrammar {

/* The legal token with the largest logit, the lowest id of a tie. -1 where nothing may be drawn: no token is legal, all
   that are have -inf, or one has NaN or +inf. */
int64_t best_legal(const float* logits, const int32_t* row, int64_t vocab_size);

}  // namespace specgrammar
