#include "pool.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace specgrammar {

namespace {
constexpr uint64_t kWanted = 0xFFFF;
constexpr uint64_t kStop = kWanted;  // more than any call wants
constexpr uint64_t kRoused = 0x8000;
constexpr std::chrono::microseconds kAwake{300};
constexpr std::chrono::microseconds kAlmostDone{100};

/* Stay awake until something holds, but not for long; whether it does. */
template <typename Condition>
bool comes_true(const Condition& condition, std::chrono::microseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}
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
  publish(kStop);
  for (std::thread& thread : threads_) thread.join();
}

int Pool::num_others(int num_threads) const {
  return is_here() ? std::min<int>(num_threads - 1, static_cast<int>(threads_.size())) : 0;
}

void Pool::publish(uint64_t wanted) {
  call_.store((call_.load() | kWanted) + 1 + wanted);
  call_.notify_all();
}

void Pool::run(int num_threads, const std::function<void()>& work) { run(num_threads, work, false); }

void Pool::wake(int num_threads) { run(num_threads, [] {}, true); }

void Pool::run(int num_threads, const std::function<void()>& work, bool with_all) {
  const int others = num_others(num_threads);
  std::unique_lock<std::mutex> lock(in_use_, std::try_to_lock);
  if (others < 1 || !lock.owns_lock()) {
    work();
    return;
  }
  work_ = &work;
  num_left_.store(others);
  num_places_.store(others);
  publish(static_cast<uint64_t>(others));
  work();
  if (!with_all) leave(num_places_.exchange(0));
  if (comes_true([this] { return !num_left_.load(); }, kAlmostDone)) return;
  for (int left = num_left_.load(); left; left = num_left_.load()) num_left_.wait(left);
}

void Pool::rouse(int num_threads) {
  const int others = num_others(num_threads);
  std::unique_lock<std::mutex> lock(in_use_, std::try_to_lock);
  if (others > 0 && lock.owns_lock()) publish(kRoused | static_cast<uint64_t>(others));
}

void Pool::serve(int number) {
  uint64_t seen = 0;
  for (;;) {
    call_.wait(seen);
    seen = call_.load();
    const uint64_t wanted = seen & kWanted;
    if (wanted == kStop) return;
    if (static_cast<uint64_t>(number) > (wanted & ~kRoused)) continue;
    if (wanted & kRoused) {
      comes_true([this, seen] { return call_.load() != seen; }, kAwake);
    } else if (takes_place()) {
      (*work_)();
      leave(1);
    }
  }
}

bool Pool::takes_place() {
  int places = num_places_.load();
  while (places > 0 && !num_places_.compare_exchange_weak(places, places - 1)) {
  }
  return places > 0;
}

void Pool::leave(int num) {
  if (num && num_left_.fetch_sub(num) == num) num_left_.notify_one();
}

}  // namespace specgrammar
