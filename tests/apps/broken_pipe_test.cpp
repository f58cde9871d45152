// Who reads the program's output may go away at any time.

#include "apps/process.h"
#include "train/small_run.h"

using support::TempDir;

TEST_CASE("a reader that closes the pipe does not spoil the run, which resumes bitwise (G05)", "[apps]") {
  const TempDir out;
  const auto command = [&](const std::string& folder) {
    return std::string(LAMINA_BIN_DIR "/mnist_batchsize --norms batch --batch-sizes 16 --hidden 8,6 --epochs 4 --limit 200 --checkpoint-every 3 ") +
           "--no-figure --resume --out '" + (out / folder).string() + "'";
  };
  const auto shell = [](const std::string& line) { return support::Process({"/bin/sh", "-c", line}).wait(); };
  const support::Ended whole = shell(command("whole"));
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  // Progress goes to standard error; its reader leaves after the first line of an epoch.
  const support::Ended cut = shell(command("cut") + " 2>&1 >/dev/null | head -n 2");
  CHECK(std::count(cut.out.begin(), cut.out.end(), '\n') == 2);
  CHECK_THAT(support::get(out / "cut/batch-n16-s1/run.json"), contains("\"status\": \"running\""));  // it ended there
  const support::Ended resumed = shell(command("cut"));
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(lamina::test::same_tensors(out / "whole/batch-n16-s1/last.safetensors", out / "cut/batch-n16-s1/last.safetensors"));
  CHECK(lamina::test::rows(out / "whole/batch-n16-s1") == lamina::test::rows(out / "cut/batch-n16-s1"));
}
