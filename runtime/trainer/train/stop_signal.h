// Stop signals: SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 ask the trainer to stop at the next step boundary.
//
// The handler only sets a flag. The flag is the one mutable global of the trainer, because a signal handler
// can reach nothing else; before install_stop_signals the signals keep their default effect, so that a rank
// that waits for its peers can be ended at once. Thread rule: install once, after the communication threads
// exist or not, it does not matter; read anywhere.
#pragma once

namespace shardrun::train {

// Also unblocks the four signals in the calling thread.
void install_stop_signals();
bool stop_requested();

}  // namespace shardrun::train
