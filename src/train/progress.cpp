#include <lamina/train/progress.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace lamina::train {
namespace {

constexpr auto redraw_interval = std::chrono::milliseconds(100);
constexpr int default_width = 80, widest_bar = 30, narrowest_bar = 10;

int terminal_width(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int width = columns ? std::atoi(columns) : 0;
  return width > 0 ? width : default_width;
}

bool is_terminal(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(out)) && term && *term && std::string_view(term) != "dumb";
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
}

std::string format_count(double value) {
  if (!std::isfinite(value)) return "?";
  const char* units[] = {"", "k", "M", "G"};
  size_t unit = 0;
  for (; std::abs(value) >= 999.5 && unit < 3; ++unit) value /= 1000;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

std::string progress_line(double fraction, const std::string& text, int width) {
  const auto room = static_cast<size_t>(std::max(width - 1, 0));  // the last column would make some terminals wrap
  std::string line = text.substr(0, room);
  const std::string percent = fmt::format("  {:3.0f} %", std::clamp(fraction, 0.0, 1.0) * 100);
  const size_t around = line.size() + percent.size() + 4;  // two spaces and the brackets
  if (room < around + narrowest_bar) return line;
  const size_t cells = std::min<size_t>(room - around, widest_bar);
  const auto full = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(cells));
  std::string bar(cells, ' ');
  std::fill_n(bar.begin(), full, '=');
  if (full < cells) bar[full] = '>';
  return fmt::format("{}  [{}]{}", line, bar, percent);
}

Progress::Progress(std::FILE* out, Mode mode, int width) : out_(out), mode_(mode), width_(width) {
  if (mode_ == Mode::automatic) mode_ = is_terminal(out) ? Mode::terminal : Mode::plain;
}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  drawn_ = false;
}

void Progress::show(double fraction, const std::function<std::string()>& text) {
  if (mode_ != Mode::terminal) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + redraw_interval;
  // The width is asked for each time: windows change.
  std::fputs(("\r" + progress_line(fraction, text(), width_ > 0 ? width_ : terminal_width(out_)) + "\x1b[K").c_str(), out_);
  std::fflush(out_);
  drawn_ = true;
}

void Progress::line(const std::string& text) {
  if (mode_ == Mode::silent) return;
  clear();
  std::fputs((text + "\n").c_str(), out_);
  std::fflush(out_);
}

}  // namespace lamina::train
