#include <lamina/optim/schedule.h>

#include <cmath>
#include <vector>

#include <lamina/core/error.h>

#include "support/allclose.h"
#include "support/catch.h"

using namespace lamina;
using namespace lamina::test;
using optim::Schedule;

namespace {

void check_factors(const std::string& text, const std::vector<double>& expected) {
  INFO(text);
  const Schedule schedule = Schedule::parse(text);
  for (size_t t = 0; t < expected.size(); ++t) {
    INFO("t = " << t);
    CHECK(schedule.factor(static_cast<int64_t>(t)) == Approx(expected[t]).margin(1e-6));
  }
}

}  // namespace

TEST_CASE("D09: schedules are right from the first unit on") {
  check_factors("step:2:0.1", {1, 1, 0.1, 0.1, 0.01});
  check_factors("cosine:4", {1, 0.853553, 0.5, 0.146447, 0, 0, 0});
  check_factors("cosine:4:0.2", {1, 0.8828427, 0.6, 0.3171573, 0.2, 0.2});
  check_factors("constant", {1, 1, 1});
  check_factors("linear:4", {1, 0.75, 0.5, 0.25, 0, 0});
  check_factors("linear:4:0.5", {1, 0.875, 0.75, 0.625, 0.5, 0.5});
  check_factors("inverse_sqrt", {1, 1, 0.7071068, 0.5773503, 0.5});
}

TEST_CASE("a warm-up rises to 1 and then hands over") {
  check_factors("warmup=4,constant", {0.25, 0.5, 0.75, 1, 1, 1});
  check_factors("warmup=2,linear:6", {0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0});
  check_factors("warmup=4,inverse_sqrt", {0.25, 0.5, 0.75, 1, 1, 0.8944272});
  check_factors("warmup=2,step:2:0.5", {0.5, 1, 0.5, 0.5, 0.25});
  check_factors("warmup=1,cosine:2", {1, 0.5, 0});
  check_factors("warmup=5,linear:3", {0.2, 0.4, 0.6, 0.8, 1, 0});  // over before the warm-up was
}

TEST_CASE("schedules parse and print") {
  for (const char* text : {"constant", "step:30:0.1", "cosine:100", "cosine:100:0.01", "linear:100", "linear:7:0.5", "inverse_sqrt",
                           "warmup=500,cosine:100", "warmup=3,constant"})
    CHECK(Schedule::parse(text).str() == text);
  for (const char* text :
       {"", "foo", "step", "step:30", "step:x:0.1", "step:30:0.1:2", "cosine", "cosine:", "cosine:1.5", "cosine:100:", "linear:3:4:5", "constant:1",
        "warmup=,constant", "warmup=5", "warmup=x,constant", "Cosine:5", "inverse_sqrt:3", "step:3:0.1 "}) {
    INFO(text);
    CHECK_THROWS_AS(Schedule::parse(text), InputError);
  }
  CHECK_THROWS_WITH(Schedule::parse("foo"), contains("[schedule] 'foo' is not one of constant, step:PERIOD:GAMMA, "));
  CHECK_THROWS_WITH(Schedule::parse("cosine:0"), "[schedule] 'cosine:0': period: expected a value >= 1, got 0");
  CHECK_THROWS_WITH(Schedule::parse("step:3:-1"), contains("gamma: expected a finite value >= 0, got -1"));
  CHECK_THROWS_WITH(Schedule::parse("step:3:inf"), contains("gamma"));
  CHECK_THROWS_WITH(Schedule::parse("linear:3:2"), contains("floor: expected a value in [0, 1], got 2"));
  CHECK_THROWS_WITH(Schedule::parse("warmup=-1,constant"), contains("warmup: expected a value >= 0, got -1"));
}

TEST_CASE("a schedule used out of range is an error") {
  CHECK_THROWS_WITH(Schedule().factor(-1), contains("[schedule] t: expected a value >= 0, got -1"));
  CHECK_THROWS_WITH((Schedule{.kind = Schedule::Kind::step, .period = 0}.factor(3)), contains("period"));
}
