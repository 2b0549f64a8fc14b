#include "runtime/trainer/train/stop_signal.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace shardrun::train {
namespace {

std::atomic<bool> g_stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int) {
  g_stop_requested.store(true, std::memory_order_relaxed);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    ::sigaction(signal, &action, nullptr);
    sigaddset(&stop_signals, signal);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);
}

bool stop_requested() {
  return g_stop_requested.load(std::memory_order_relaxed);
}

}  // namespace shardrun::train
