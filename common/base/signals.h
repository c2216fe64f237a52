// SIGTERM and SIGINT as a daemon wants them: an orderly stop at the first, the end at once at the
// second.
#pragma once

#include <functional>

namespace smartgen::base {

// Call first in main, before any thread is made: all threads inherit that the signals wait for
// RunUntilSignal.
void BlockStopSignals();

// EX_TEMPFAIL of sysexits.h, a process's exit status: nothing is wrong that a new one does not
// mend.
inline constexpr int kStartAnew = 75;

// Ends the process at once, with what was logged written and nothing destroyed.
[[noreturn]] void ExitNow(int status);

// Waits for the first stop signal, runs `drain` (which must return within its own bound), and
// returns. Another signal while `drain` runs ends the process with exit code 130 and no further
// ado.
void RunUntilSignal(const std::function<void()>& drain);

// As if SIGTERM had come from outside; nothing if a signal has been taken already. Thread-safe.
void RequestStop();

}  // namespace smartgen::base
