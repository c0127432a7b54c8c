/* Threads that wait for work without the interpreter. */

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace specgrammar {

/* Of a pool, the caller among them. */
constexpr int kMostThreads = 128;

class Pool {
 public:
  /* Start `num_threads - 1` threads: the caller is one. Throws std::system_error where the system has no more, and
     leaves none. */
  explicit Pool(int num_threads);
  /* Ends the threads. Only where they are here. */
  ~Pool();

  /* Whether this is the process that the threads were started in, and not one that was forked from it. */
  bool is_here() const;

  /* The caller among them; there is a limit. */
  int num_threads() const { return 1 + static_cast<int>(threads_.size()); }

  /* Run `work` on this thread and on `num_threads - 1` others, and return when all that have begun are done: what is
     shared out is over when this thread finds no more of it, and one that has not woken by then is not waited for. A
     pool that is in use, or whose threads stayed in the process that this one was forked from, leaves it to this thread
     alone. */
  void run(int num_threads, const std::function<void()>& work);

  /* Hand nothing to `num_threads - 1` threads, and wait until it is done so often. */
  void wake(int num_threads);

  /* Wake the threads that a call will want in a moment: until it comes they stay awake, but not for long. To wake one
     takes as long as a few dozen fills, in which the caller can prepare its call. */
  void rouse(int num_threads);

 private:
  int num_others(int num_threads) const;
  void publish(uint64_t wanted);
  void run(int num_threads, const std::function<void()>& work, bool with_all);
  void serve(int number);
  bool takes_place();
  void leave(int num);
  void stop();

  /* A call is published as one word, so that a thread which wakes late sees which call it is and whether it is
     wanted: the number of the call above, the number of threads that are wanted in the lowest 16 bits, and whether
     they are only to stay awake. */
  std::atomic<uint64_t> call_{0};
  std::atomic<int> num_places_{0};  /* for threads that have not begun; one that finds none was not wanted after all */
  std::atomic<int> num_left_{0};    /* that have not ended, nor were found to be late */
  const std::function<void()>* work_ = nullptr;
  std::mutex in_use_;
  int64_t owner_;
  std::vector<std::thread> threads_;
};

}  // namespace specgrammar
