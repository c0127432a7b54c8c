/* Threads of a pool that take rows, as `specgrammar_walk` lets them; `test_threads.py` compiles it with a sanitizer.

   Prints what was wrong, and how many of the threads that were wanted came in time. */

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "pool.h"
#include "walk.h"

using namespace specgrammar;

namespace {

constexpr int64_t kNumWords = 2;
constexpr int64_t kMostNodes = 24;

/* Requests share rows out among threads; each node that is live gets one, which holds its number. */
struct Round {
  Round(int64_t num_requests, int64_t seed) : num_nodes(static_cast<size_t>(num_requests)) {
    for (int64_t& num : num_nodes) num = 1 + (seed = (seed * 48271) % 2147483647) % kMostNodes;
    words.resize(static_cast<size_t>(num_requests * kMostNodes * kNumWords));
    owners.assign(static_cast<size_t>(num_requests * kMostNodes), 0);
  }

  static bool is_live(int64_t node) { return node % 7 < 3 || node % kMostNodes == 0; }

  bool run(Pool& pool, int num_threads) {
    Rows rows{words.data(), kNumWords, owners.data(), nullptr, {0}, false};
    Gaps gaps;
    std::atomic<size_t> next{0};
    std::atomic<int> num_there{0};
    pool.run(num_threads, [&] {
      ++num_there;
      RowTaker taker(rows, gaps, num_threads > 1 ? 16 : 1);
      for (size_t i; (i = next.fetch_add(1)) < num_nodes.size();) {
        taker.expect(num_nodes[i]);
        for (int64_t node = static_cast<int64_t>(i) * kMostNodes, end = node + num_nodes[i]; node < end; ++node) {
          if (!is_live(node)) continue;
          std::fill_n(rows.words + taker.take(node) * kNumWords, kNumWords, static_cast<int32_t>(node));
        }
      }
    });
    gaps.close(rows);
    num_came += num_there;
    num_wanted += std::min(num_threads, pool.num_threads());
    return is_right(rows);
  }

  bool is_right(const Rows& rows) const {
    std::vector<int32_t> expected, found(owners.begin(), owners.begin() + rows.num_rows.load());
    for (size_t i = 0; i < num_nodes.size(); ++i) {
      for (int64_t node = static_cast<int64_t>(i) * kMostNodes, end = node + num_nodes[i]; node < end; ++node) {
        if (is_live(node)) expected.push_back(static_cast<int32_t>(node));
      }
    }
    for (size_t row = 0; row < found.size(); ++row) {
      if (words[row * kNumWords] != found[row] || words[row * kNumWords + 1] != found[row]) return false;
    }
    std::sort(found.begin(), found.end());
    return found == expected;
  }

  static inline int64_t num_came = 0;
  static inline int64_t num_wanted = 0;
  std::vector<int64_t> num_nodes;
  std::vector<int32_t> words;
  std::vector<int32_t> owners;
};

}  // namespace

int main() {
  Pool pool(6);
  for (int64_t round = 0; round < 6000; ++round) {
    const int num_threads = static_cast<int>(1 + round % 7);
    if (round % 5 == 0) pool.rouse(num_threads);
    if (round % 11 == 0) pool.wake(num_threads);
    if (!Round(round % 37, round + 1).run(pool, num_threads)) {
      std::printf("round %lld has wrong rows\n", static_cast<long long>(round));
      return 1;
    }
  }
  std::printf("%lld of %lld\n", static_cast<long long>(Round::num_came), static_cast<long long>(Round::num_wanted));
}
