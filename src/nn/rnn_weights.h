#pragma once
// What recurrent layers and their single steps share. Private to src/nn.

#include <lamina/nn/rnn.h>

namespace lamina::nn {

/// "lstm", for errors.
const char* cell_name(RecurrentCell cell);
/// "LSTM", for summaries.
const char* layer_name(RecurrentCell cell);
/// The op's norm, nothing where the cell has none such. Weight norm is `none` to the op.
std::optional<RecurrentNorm> recurrent_norm(RecurrentCell cell, const NormSpec& norm);
/// Throws InputError for options that a layer of any kind refuses.
void check_options(RecurrentCell cell, const RecurrentLayerOptions& options);
/// The op's options but for the direction.
RecurrentOptions op_options(RecurrentCell cell, const RecurrentLayerOptions& options, bool training);

}  // namespace lamina::nn
