#pragma once
// Progress for people: on a terminal a line that is overwritten, elsewhere whole lines without control characters.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace lamina::train {

/// "4m10s", "1h02m", "7s"; "?" for what is not finite or negative.
std::string format_duration(double seconds);
/// "12.4k", "831", "1.25M": three digits.
std::string format_count(double value);

class Progress {
 public:
  enum class Mode { automatic, terminal, plain, silent };

  /// automatic: a bar when `out` is a terminal (and TERM is not "dumb"), else plain lines. `width`: columns, 0 for the terminal's own.
  explicit Progress(std::FILE* out = stderr, Mode mode = Mode::automatic, int width = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows the state of things, at most ten times a second and on a terminal only; `text` is called only when something is shown.
  void show(double fraction, const std::function<std::string()>& text);
  /// A line that stays; replaces what show() drew. Flushed.
  void line(const std::string& text);

 private:
  void clear();

  std::FILE* out_;
  Mode mode_;
  int width_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

/// One line of the bar, exactly as drawn: `text` cut to fit, the bar in what is left ("text  [=====>    ]  43 %"). Never longer than width - 1.
std::string progress_line(double fraction, const std::string& text, int width);

}  // namespace lamina::train
