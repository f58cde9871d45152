#pragma once
// Using a trained model: --eval, --predict, --sample.

#include "train_lstm/options.h"

namespace lamina::train_lstm {

/// Prints the scores of each split.
void evaluate(const Options& options);

/// Prints a CSV table with a line for each sequence: its id and the class with its probability, or the numbers.
void predict(const Options& options);

/// Prints the prompt and what the model makes of it.
void sample(const Options& options);

}  // namespace lamina::train_lstm
