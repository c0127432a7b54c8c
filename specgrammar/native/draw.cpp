#include "draw.h"

#include <bit>
#include <cstring>
#include <limits>

namespace specgrammar {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kLanes = 4;
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Flags = int32_t __attribute__((vector_size(4 * kLanes)));

constexpr uint32_t kAll = ~uint32_t{0};

/* The largest of some logits, a multiple of 32; +inf where one is +inf or NaN. */
float largest_of(const float* logits, int64_t count) {
  Floats largest = Floats{} - kInfinity;
  Flags are_below = Flags{} - 1;
  for (const float* const end = logits + count; logits < end; logits += kLanes) {
    Floats lanes;
    std::memcpy(&lanes, logits, sizeof lanes);
    largest = lanes > largest ? lanes : largest;
    are_below &= lanes < kInfinity;
  }
  float value = largest[0];
  bool is_below = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    value = largest[lane] > value ? largest[lane] : value;
    is_below &= are_below[lane] != 0;
  }
  return is_below ? value : kInfinity;
}

}  // namespace

int64_t best_legal(const float* logits, const int32_t* row, int64_t vocab_size) {
  float best = -kInfinity;
  int64_t token = -1;
  bool is_found = true;  // else it is the first with this value from `token` on
  int64_t first = 0;
  const auto bits_at = [&](int64_t place) { return static_cast<uint32_t>(row[place / 32]); };
  const auto take = [&](float logit, int64_t place, bool is_place_of_it) {
    if (logit > best) best = logit, token = place, is_found = is_place_of_it;
    return logit < kInfinity;
  };
  while (first < vocab_size) {
    const int64_t begin = first;
    while (vocab_size - first >= 32 && bits_at(first) == kAll) first += 32;
    if (first > begin) {
      if (!take(largest_of(logits + begin, first - begin), begin, false)) return -1;
      continue;
    }
    uint32_t bits = bits_at(first);
    if (vocab_size - first < 32) bits &= (uint32_t{1} << (vocab_size - first)) - 1;
    for (; bits; bits &= bits - 1) {
      const int64_t place = first + std::countr_zero(bits);
      if (!take(logits[place], place, true)) return -1;
    }
    first += 32;
  }
  while (!is_found && logits[token] != best) ++token;
  return token;
}

}  // namespace specgrammar
