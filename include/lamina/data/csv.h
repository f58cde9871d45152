#pragma once
// Sequences from a CSV file:
//
//   sequence,x,y,label          the header names the columns, in any order
//   a,0.5,-1,                   rows with the same id stand together and are one sequence, a row a step
//   a,0.25,2e-3,left            a target is read from a sequence's last row; the other rows may leave it empty
//   "b, too",1,1,right          fields with commas, quotes ("" is one) or line breaks stand in quotes
//
// Every other column is an input: finite numbers with a decimal point. UTF-8, LF or CR LF; a byte order mark and empty lines are passed over.

#include <filesystem>
#include <string>
#include <vector>

#include <lamina/data/sequences.h>

namespace lamina::data {

/// What the columns are. Either `classify` or `regress` names targets, or, to read sequences without any, neither.
struct CsvColumns {
  std::string id = "sequence";
  std::string classify = {};              // a column of class names
  std::vector<std::string> regress = {};  // columns of numbers
  std::vector<std::string> ignore = {};   // passed over; they must be there, unless `inputs` says what a model knows
  /// What a model knows: the input columns in its order, and its classes. Empty: those of the file, inputs in its order, classes sorted.
  std::vector<std::string> inputs = {}, classes = {};
};

struct CsvSequences {
  std::vector<std::string> ids;  // of the sequences, in the order of the file
  std::vector<std::string> inputs, classes;
  Sequences sequences;  // targets: i64 [N] classes, f32 [N, K] numbers, or i64 [N] zeros where none are read
};

/// Throws InputError "[csv] PATH, line 7: ..." (the header is line 1) for a header without a named column, with one twice, with no input or one that
/// the model does not know; a row with another number of fields; what is not a finite number; an id that comes back after another; a target missing
/// in a sequence's last row; a class that the model does not know; a quote without its end; a CR without LF outside
/// quotes; what is not UTF-8 or holds a zero byte; a file without rows, and fewer than two classes.
CsvSequences read_csv(const std::filesystem::path& path, const CsvColumns& columns);

}  // namespace lamina::data
