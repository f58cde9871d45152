#include <lamina/train/progress.h>

#include <cmath>
#include <limits>

#include "support/catch.h"

using namespace lamina::train;

namespace {

// What a Progress writes.
std::string written(Progress::Mode mode, const std::function<void(Progress&)>& use) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    Progress progress(out, mode, 60);
    use(progress);
  }
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

}  // namespace

TEST_CASE("durations and counts read well", "[train][progress]") {
  CHECK(format_duration(0) == "0s");
  CHECK(format_duration(59.4) == "59s");
  CHECK(format_duration(59.6) == "1m00s");
  CHECK(format_duration(250) == "4m10s");
  CHECK(format_duration(3720) == "1h02m");
  CHECK(format_duration(-1) == "?");
  CHECK(format_duration(std::nan("")) == "?");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "?");
  CHECK(format_count(831) == "831");
  CHECK(format_count(12400) == "12.4k");
  CHECK(format_count(999.7) == "1.00k");
  CHECK(format_count(1250000) == "1.25M");
  CHECK(format_count(123456) == "123k");
  CHECK(format_count(std::numeric_limits<double>::infinity()) == "?");
}

TEST_CASE("the bar fits every width (G05)", "[train][progress]") {
  for (int width = 0; width <= 130; ++width)
    for (const double fraction : {-1.0, 0.0, 0.5, 1.0, 2.0}) {
      const std::string line = progress_line(fraction, "epoch 3/60  train nll 0.059", width);
      CHECK(line.size() <= static_cast<size_t>(std::max(width - 1, 0)));
    }
  CHECK(progress_line(0.5, "half", 40) == "half  [============>           ]   50 %");
  CHECK(progress_line(1.0, "all", 30) == "all  [===============]  100 %");
}

TEST_CASE("plain output has no control characters and one line per line (G05)", "[train][progress]") {
  const std::string text = written(Progress::Mode::plain, [](Progress& progress) {
    progress.show(0.3, [] { return std::string("never"); });
    progress.line("epoch 1/2");
    progress.show(0.6, [] { return std::string("never"); });
    progress.line("epoch 2/2");
  });
  CHECK(text == "epoch 1/2\nepoch 2/2\n");
}

TEST_CASE("on a terminal the bar is drawn over and cleared, and not more often than needed", "[train][progress]") {
  int drawn = 0;
  const std::string text = written(Progress::Mode::terminal, [&](Progress& progress) {
    for (int i = 0; i < 1000; ++i)
      progress.show(i / 1000.0, [&] {
        ++drawn;
        return std::string("epoch 1/2");
      });
    progress.line("done");
  });
  CHECK(drawn >= 1);
  CHECK(drawn < 50);
  CHECK(text.starts_with("\repoch 1/2  ["));
  CHECK(text.ends_with("\r\x1b[Kdone\n"));
}

TEST_CASE("automatic is plain where there is no terminal; silent is silent", "[train][progress]") {
  CHECK(written(Progress::Mode::automatic, [](Progress& progress) {
          progress.show(0.5, [] { return std::string("never"); });
          progress.line("line");
        }) == "line\n");
  CHECK(written(Progress::Mode::silent, [](Progress& progress) { progress.line("line"); }).empty());
}
