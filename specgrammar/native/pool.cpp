#include "pool.h"

#include <unistd.h>

#include <algorithm>

namespace specgrammar {

namespace {
constexpr uint64_t kWanted = 0xFF;
constexpr uint64_t kStop = kWanted;  // more than any call wants
constexpr int kMostThreads = 128;
}  // namespace

Pool::Pool(int num_threads) : owner_(getpid()) {
  try {
    for (int number = 1; number < std::min(num_threads, kMostThreads); ++number) {
      threads_.emplace_back([this, number] { serve(number); });
    }
  } catch (...) {  // the system has no more of them
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

bool Pool::is_here() const { return owner_ == getpid(); }

void Pool::stop() {
  call_.store((call_.load() | kWanted) + 1 + kStop);
  call_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(int num_threads, const std::function<void()>& work) {
  const int num_others = std::min<int>(num_threads - 1, static_cast<int>(threads_.size()));
  std::unique_lock<std::mutex> lock(in_use_, std::try_to_lock);
  if (num_others < 1 || !lock.owns_lock() || !is_here()) {
    work();
    return;
  }
  work_ = &work;
  num_left_.store(num_others);
  call_.store((call_.load() | kWanted) + 1 + static_cast<uint64_t>(num_others));
  call_.notify_all();
  work();
  for (int left = num_left_.load(); left; left = num_left_.load()) num_left_.wait(left);
}

void Pool::serve(int number) {
  uint64_t seen = 0;
  for (;;) {
    call_.wait(seen);
    seen = call_.load();
    const uint64_t num_wanted = seen & kWanted;
    if (num_wanted == kStop) return;
    if (static_cast<uint64_t>(number) <= num_wanted) {
      (*work_)();
      if (num_left_.fetch_sub(1) == 1) num_left_.notify_one();
    }
  }
}

}  // namespace specgrammar
