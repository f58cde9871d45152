#include <lamina/data/csv.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using namespace lamina::data;
using support::put;
using support::TempDir;

namespace {

CsvSequences read(const std::string& text, const CsvColumns& columns) {
  const TempDir dir;
  put(dir / "data.csv", text);
  return read_csv(dir / "data.csv", columns);
}

}  // namespace

TEST_CASE("sequences of unequal length come with their classes", "[data][csv]") {
  // A byte order mark, CR LF, columns in any order, quotes, an empty line, targets in last rows only, no end of line at the end.
  const std::string text =
      "\xEF\xBB\xBFx,label,sequence,\"y, too\"\r\n0.5,,a,-1\r\n 0.25 ,left,a,2e-3\r\n\r\n1,\"ri\"\"ght\",\"b,\nsecond line\",+1\r\n-4,left,c,1e-60";
  const CsvSequences csv = read(text, {.classify = "label"});
  CHECK(csv.ids == std::vector<std::string>{"a", "b,\nsecond line", "c"});
  CHECK(csv.inputs == std::vector<std::string>{"x", "y, too"});
  CHECK(csv.classes == std::vector<std::string>{"left", "ri\"ght"});
  CHECK(csv.sequences.lengths == std::vector<int64_t>{2, 1, 1});
  CHECK(csv.sequences.steps.to_vector<float>() == std::vector<float>{0.5F, -1, 0.25F, 2e-3F, 1, 1, -4, 0});
  CHECK(csv.sequences.targets.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 0});
}

TEST_CASE("numbers to regress come from the last row; a model's columns keep its order", "[data][csv]") {
  const std::string text = "sequence,b,a,u,v\n1,10,1,,\n1,20,2,0.5,-3\n2,30,3,7,8\n";
  const CsvSequences csv = read(text, {.regress = {"v", "u"}});
  CHECK(csv.sequences.targets.shape() == Shape{2, 2});
  CHECK(csv.sequences.targets.to_vector<float>() == std::vector<float>{-3, 0.5F, 8, 7});
  CHECK(csv.sequences.steps.to_vector<float>() == std::vector<float>{10, 1, 20, 2, 30, 3});
  const CsvSequences known = read(text, {.ignore = {"u", "v"}, .inputs = {"a", "b"}});
  CHECK(known.inputs == std::vector<std::string>{"a", "b"});
  CHECK(known.sequences.steps.to_vector<float>() == std::vector<float>{1, 10, 2, 20, 3, 30});
  CHECK_NOTHROW(check(known.sequences));
  const CsvSequences classes = read("sequence,x,label\n1,1,b\n2,1,b\n", {.classify = "label", .classes = {"a", "b"}});
  CHECK(classes.sequences.targets.to_vector<int64_t>() == std::vector<int64_t>{1, 1});
}

TEST_CASE("what is wrong with a file is said with its line", "[data][csv]") {
  const CsvColumns by_label{.classify = "label"};
  const std::string head = "sequence,x,label\n";
  const auto refused = [&](const std::string& text, const std::string& message, CsvColumns columns = {.classify = "label"}) {
    CHECK_THROWS_WITH(read(text, columns), contains("data.csv, line ") && contains(message));
  };
  refused("", "line 1: expected a header with the names of the columns, got an empty file");
  refused(head, "line 1: expected rows below the header, got none");
  refused(head + "a,1,u\nb,nan,v\n", "line 3: column 'x': expected a finite number, got 'nan'");
  refused(head + "a,1,u\nb,inf,v\n", "line 3: column 'x': expected a finite number, got 'inf'");
  refused(head + "a,1e60,u\n", "line 2: column 'x': expected a finite number, got '1e60'");
  refused(head + "a,,u\n", "line 2: column 'x': expected a number, got ''");
  refused(head + "a,1.5x,u\n", "line 2: column 'x': expected a number, got '1.5x'");
  refused(head + "a,\"1,5\",u\n", "expected a number, got '1,5'");
  refused(head + "a,1,u\n\n\nb,1\n", "line 5: expected 3 fields, as in the header, got 2");
  refused(head + "a,1,u\nb,1,v,\n", "line 3: expected 3 fields, as in the header, got 4");
  refused(head + "a,1,u\nb,1,v\na,1,u\n", "line 4: sequence 'a' comes back after another one");
  refused(head + "a,1,u\na,1,\nb,1,v\n", "line 3: column 'label': expected the class of sequence 'a' in its last row, got nothing");
  refused(head + "a,1,u\nb,1,u\n", "column 'label': expected at least two classes, got 'u' alone");
  refused(head + "a,1,\"u\nb,1,v\n", "line 2: a quote has no end");
  refused(head + "a,1,\"u\"x\n", "line 2: expected a comma or the end of the line after a quote, got 'x'");
  refused(head + "a,1,u\nb,1" + std::string(1, '\0') + ",v\n", "line 3: byte 0x00 is not text");
  refused(head + "a,+-1,u\n", "line 2: column 'x': expected a number, got '+-1'");
  refused("sequence,x,label\ra,1,u\rb,1,v\r", "line 1: a carriage return without a line feed");
  refused(head + "a,1,u\nb,1,v\r", "line 3: a carriage return without a line feed");
  refused(head + "a,1,u\nb,1,\xFF\n", "line 3: byte 0xFF is not UTF-8");
  refused("id,x,label\na,1,u\n", "line 1: expected a column 'sequence', got id, x, label");
  refused("sequence,x,class\na,1,u\n", "line 1: expected a column 'label', got sequence, x, class");
  refused("sequence,x,note,label\na,1,n,u\n", "line 1: expected a column 'notes', got sequence, x, note, label",
          {.classify = "label", .ignore = {"notes"}});
  refused("sequence,x,x,label\na,1,1,u\n", "line 1: column 'x' is named twice");
  refused("sequence,label\na,u\n", "line 1: expected a column of inputs beside label, sequence");
  refused("sequence,x,z,label\na,1,2,u\n", "column 'z' is none of the model's inputs: x",
          {.classify = "label", .inputs = {"x"}, .classes = {"u", "v"}});
  refused("sequence,x,label\na,1,u\n", "expected a column 'z'", {.classify = "label", .inputs = {"x", "z"}, .classes = {"u", "v"}});
  refused(head + "a,1,u\nb,1,w\n", "line 3: column 'label': class 'w' is none of the model's: u, v", {.classify = "label", .classes = {"u", "v"}});
  refused("sequence,x,y\na,1,nan\n", "line 2: column 'y': expected a finite number, got 'nan'", {.regress = {"y"}});
  CHECK_THROWS_WITH(read(head, {.classify = "label", .regress = {"x"}}), contains("got both"));
}
