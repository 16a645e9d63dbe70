// What the model eats: one micro-batch, flattened and without padding.
//
// A micro-batch holds several sequences back to back in N rows (tokens). Attention runs inside
// segments: a segment is a sequence, or each document of a sequence where data.document_mask is on.
// Loss is taken only at the P predicted rows.
#pragma once

#include <cstdint>
#include <vector>

namespace tranche {

// All arrays are on the host and owned. An empty micro-batch (N = 0, cu_seqlens = {0}) stands past
// the end of a bounded loader.
struct MicroBatch {
  std::vector<int32_t> input_ids;     // [N]
  std::vector<int32_t> positions;     // [N] from 0 in each segment
  std::vector<int32_t> token_types;   // [N] 1 in the second sentence of a pair, else 0
  std::vector<int32_t> cu_seqlens;    // [S + 1] rows where segments begin, from 0; the last is N
  std::vector<int32_t> cu_sequences;  // [Q + 1] rows where sequences (samples) begin: [CLS] rows
  std::vector<int32_t> predict_rows;  // [P] ascending rows in [0, N)
  std::vector<int32_t> labels;        // [P] the right id of each; P = 0 is legal, without loss
  // [Q] with data.next_sentence: 0 where B follows A, 1 where it is from elsewhere; else empty.
  std::vector<int32_t> next_sentence;
  std::vector<uint64_t> token_keys;  // [N] (global sample << 20) | row in it: dropout's counters
  int64_t first_sample = 0;          // global index of the first sequence
  double text_bytes = 0;  // behind the P predictions, by the mean of their source; 0: unknown

  int64_t num_tokens() const { return static_cast<int64_t>(input_ids.size()); }
  int64_t num_segments() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t num_sequences() const { return static_cast<int64_t>(cu_sequences.size()) - 1; }
  int64_t num_predicted() const { return static_cast<int64_t>(labels.size()); }
};

// The most that any micro-batch of a loader can hold. Memory is planned with these.
struct BatchBounds {
  int64_t tokens = 0;          // N
  int64_t segments = 0;        // S
  int64_t sequences = 0;       // Q
  int64_t predicted = 0;       // P
  int64_t segment_length = 0;  // rows of the longest segment
};

}  // namespace tranche
