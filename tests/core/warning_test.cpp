#include <lamina/core/warning.h>

#include <memory>
#include <thread>
#include <vector>

#include "support/catch.h"

using namespace lamina;

TEST_CASE("a warning is told once, to the innermost who catches") {
  const CatchWarnings outer;
  warn("here", "one");
  {
    const CatchWarnings inner;
    warn("here", "one");
    warn("here", "two");
    warn("here", "two");
    CHECK(inner.texts() == std::vector<std::string>{"[here] one", "[here] two"});
  }
  warn("here", "three");
  warn("there", "three");
  CHECK(outer.texts() == std::vector<std::string>{"[here] one", "[here] three", "[there] three"});
}

TEST_CASE("those who catch warnings may go in any order, as those of several threads do") {
  auto first = std::make_unique<CatchWarnings>(), second = std::make_unique<CatchWarnings>();
  first.reset();
  warn("here", "one");
  CHECK(second->texts() == std::vector<std::string>{"[here] one"});
  const CatchWarnings third;
  second.reset();
  warn("here", "two");
  CHECK(third.texts() == std::vector<std::string>{"[here] two"});
}

TEST_CASE("warnings come from any thread") {
  const CatchWarnings caught;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([] {
      for (int k = 0; k < 100; ++k) warn("thread", std::to_string(k % 10));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(caught.texts().size() == 10);
}
