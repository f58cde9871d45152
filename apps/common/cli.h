#pragma once
// What the programs share: one line for every error, exit codes (0 done, 1 failed, 2 bad usage or input), options checked by name.

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lamina/core/device.h>
#include <lamina/core/error.h>

namespace lamina::cli {

/// Runs the body of a program and returns its exit code. InputError gives one line on standard error and 2, other exceptions one line and 1; so does
/// output that could not be written (a full disk shows only when the last of it is flushed). A write beyond the file size limit is an error, not a
/// signal. A standard stream that the caller has closed stays unusable: no file opened later takes its place.
int run(const std::string& program, const std::function<int()>& body);

/// Call first in main(). Idle threads wait for the next loop by spinning, by GNU OpenMP's default for so long that beside any other busy process they
/// take the cores from the thread that they wait for; a short spin is as fast on a quiet machine and faster beside a busy process
/// (docs/performance.md). OpenMP reads the length when the program is loaded, so the program starts itself once more. Does nothing where the
/// environment says how to wait.
void spin_briefly(char** argv);

/// Parses the command line. Prints the help, or with --version the version, when asked for and returns false; throws InputError for anything wrong.
/// Unknown keys of a config file are wrong, and so is a gap in a list ("none,,layer").
bool parse(CLI::App& app, int argc, char** argv);

/// A fresh app whose help shows every default, with "--config FILE" (TOML).
void set_up(CLI::App& app);

/// For whole numbers: "expected at least 1, got 0". Decimal and within 64 bits, where CLI11 alone reads 010 as 8 and cuts what is too large.
CLI::Validator whole_at_least(int64_t least);

/// --device and --tf32.
struct Machine {
  std::string device = "auto";
  bool tf32 = false;
  bool cuda_graph = false;  // of programs that train
};
void add_machine(CLI::App& app, Machine& machine, const std::string& group, bool trains = false);
/// The device that was asked for, and f32 products as asked for. Where a program could use GPUs but finds none, "auto" is the CPU with one line that
/// says why. Throws InputError "--device: ..." for what is not there.
Device choose_device(const std::string& program, const Machine& machine);
/// "cuda:0 (NVIDIA H100), f32 products in TF32" for the head of a run; "" where the CPU is all that the program was built for.
std::string describe_device(Device device, const Machine& machine);

/// Checks of a number.
CLI::Validator at_least(double least);
CLI::Validator greater_than(double limit);
/// low <= x <= high.
CLI::Validator from_to(double low, double high);
/// low <= x < high.
CLI::Validator from_to_below(double low, double high);

/// Throws InputError "--option: 'value' is named twice" when it is.
template <class T>
void require_distinct(const std::string& option, const std::vector<T>& values);

[[noreturn]] void fail_twice(const std::string& option, const std::string& value);

template <class T>
void require_distinct(const std::string& option, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (values[i] == values[j]) {
        if constexpr (std::is_arithmetic_v<T>)
          fail_twice(option, std::to_string(values[i]));
        else
          fail_twice(option, values[i]);
      }
}

}  // namespace lamina::cli
