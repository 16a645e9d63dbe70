// Backend: every operation the models need, forward and backward, on one kind of device.
//
// Rules that hold for every operation unless its comment says otherwise:
//  * Calls only enqueue: they return at once, work runs in the order of its stream, arguments are
//    copied. Nothing is read back by the host except through CopyToHost followed by a wait on an
//    event or stream. Nothing allocates.
//  * Gradients of parameters accumulate (+=) in fp32; gradients of activations overwrite (=).
//    Outputs never alias inputs except where "may alias" is written.
//  * N is the number of tokens of a micro-batch, flattened: sequences lie one after another,
//    without padding. H is hidden_size.
//  * T is fp32 or bf16, one of them for all activations and weights of a call; statistics, softmax
//    and sums are fp32 inside.
//  * The result of a row depends on that row alone and not on how many rows a call has, nor on the
//    number of threads: sums have a fixed order. (This is what makes packing, recompute and, later,
//    sharding exact.)
//  * Denormal numbers count as zero. Streams share scratch memory: operations that need it take
//  turns.
//  * Shape or type faults are the programmer's: CHECK.
//
// Implementations: cpu (tensor/cpu), plan (tensor/plan_backend.h: no arithmetic, counts). A missing
// operation does not compile.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "tensor/arena.h"
#include "tensor/kinds.h"
#include "tensor/tensor.h"

namespace tranche {

// An ordered queue of device work. Created by a Backend; outlives the work in it (the destructor
// waits).
class Stream {
 public:
  virtual ~Stream() = default;
};

// kCompute: operations, with all threads. kTransfer: data that moves, and calls of the host, beside
// them.
enum class StreamKind : uint8_t { kCompute, kTransfer };

// A point in a stream that others can wait for. Reusable: Record moves it.
class Event {
 public:
  virtual ~Event() = default;
};

// c = epilogue(op(a)·op(b)), op(a) [M, K], op(b) [K, N], c [M, N]. The epilogue runs in this order,
// each part only where given:
//   x = a·b;  x += bias;  pre_activation = x;  x = activation(x);
//   x *= derivative'(derivative_input);  x += residual;  c = x, or c += x with accumulate.
// Where pre_activation is stored, the activation is taken of the stored, rounded value, so that a
// recompute from it gives the same bits.
struct MatMulArgs {
  Tensor a;
  Tensor b;
  Tensor c;  // T or fp32
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  // Where b is matrices below each other (a: beside each other): the k at which the second and the
  // third begin, 0 for none. No block of a sum spans them, and the blocks of the last matrix come
  // first, as a gradient flows back through them.
  std::array<int64_t, 2> seams = {0, 0};
  Tensor bias;  // [1, N], T
  Activation activation = Activation::kNone;
  Tensor pre_activation;                      // [M, N] output, T
  Activation derivative = Activation::kNone;  // multiplies by the derivative of this function …
  Tensor derivative_input;  // … at these inputs [M, N], T: the backward of an activation, fused
  Tensor residual;          // [M, N], T; may be c itself
};

struct NormArgs {
  NormKind kind = NormKind::kLayerNorm;
  float eps = 1e-5f;
  // The columns are `groups` equal parts, each normalised alone over D = cols / groups (heads of q
  // and k); 1 for a whole row.
  int64_t groups = 1;
  Tensor weight;  // [1, D]
  Tensor bias;    // [1, D] or undefined
};

// What dropout masks are a function of; see tensor/dropout_mask.h. An element is kept where its
// random number is >= probability, and then divided by (1 - probability).
struct DropoutArgs {
  float probability = 0;
  uint64_t key = 0;   // of (seed, step)
  uint32_t site = 0;  // which dropout of the model: layer and place
  Tensor token_keys;  // [1, N] uint64: identity of each token (sample and position), the same
                      // wherever the token is computed
};

// Scaled dot-product attention over segments that lie one after another.
//   out[i, h] = Σ_j softmax_j(scale · q[i, h]·k[j, h / (heads / kv_heads)]) v[j, …]   over the j
//   that i may see.
// Segment s owns query rows [query_offsets[s], query_offsets[s+1]) and key rows [key_offsets[s],
// key_offsets[s+1]). Query i of a segment stands at position i + (keys - queries) of it (the last
// query sees the last key), which is how a key/value cache is used. causal: j <= position of i.
// window w: |position - j| <= w besides.
struct AttentionArgs {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;
  bool causal = false;
  // Keys at most this far are seen, on both sides.
  int64_t window = std::numeric_limits<int64_t>::max();
  int64_t segments = 0;
  Tensor query_offsets;    // [1, segments + 1] int32
  Tensor key_offsets;      // the same tensor where queries and keys are the same tokens
  int64_t max_length = 0;  // of a segment, in keys
  int64_t pairs = 0;       // Σ over queries of the keys they may see: only for counting FLOPs
  DropoutArgs dropout;  // on the probabilities; the element is (token of the query, head, index of
                        // the key in its segment)
};

struct AdamWArgs {
  Tensor master;     // [1, n] fp32: updated
  Tensor weights;    // [1, n] bf16: receives the rounded master; undefined in fp32, where master is
                     // the weights
  Tensor gradients;  // [1, n] fp32
  Tensor m, v;       // [1, n] fp32: updated
  Tensor control;    // see FinishNorm: scale of the gradient, whether to apply at all
  // double: 1 − β of a float 0.999 would be off by 1e-5.
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;  // 1 for the first: the exponent of the bias corrections
};

// Upper bounds of what operations will be asked for, fixed before the run: scratch memory follows
// from them.
struct WorkspaceLimits {
  DType dtype = DType::kFloat32;
  int64_t max_tokens = 0;
  int64_t max_segments = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu (AVX2, 2 threads)".
  virtual std::string Describe() const = 0;
  // Takes scratch memory from the arena, by name. Called once, before any operation that computes.
  virtual void ReserveWorkspace(const WorkspaceLimits& limits, Arena& arena) = 0;

  // --- streams ---
  virtual std::unique_ptr<Stream> CreateStream(absl::string_view name,
                                               StreamKind kind = StreamKind::kCompute) = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;
  virtual void Record(Stream& stream,
                      Event& event) = 0;  // the event happens when the work enqueued so far is done
  virtual void Wait(Stream& stream,
                    Event& event) = 0;  // work enqueued later starts after the event's last Record
  virtual void Synchronize(Event& event) = 0;  // the host waits
  virtual void Synchronize(Stream& stream) = 0;
  // Runs `work` on the host when the stream gets there, and goes on when it returns. It may read
  // and write host memory and, on the CPU, the tensors of work that is done; it enqueues nothing.
  virtual void Call(Stream& stream, std::function<void()> work) = 0;

  // --- moving --- host memory must stay valid (to device) or untouched (to host) until the stream
  // has passed this point. Contiguous tensors.
  virtual void CopyToDevice(Stream& stream, Tensor to, const void* from) = 0;
  virtual void CopyToHost(Stream& stream, void* to, Tensor from) = 0;
  virtual void Fill(Stream& stream, Tensor tensor,
                    float value) = 0;  // T or fp32 or fp64; any type with value 0
  virtual void Copy(Stream& stream, Tensor to, Tensor from) = 0;  // converts between fp32 and bf16
  // to += from; fp32 or bf16 each.
  virtual void Add(Stream& stream, Tensor to, Tensor from) = 0;
  // to[i] = from[rows[i]]; rows [1, P] int32.
  virtual void GatherRows(Stream& stream, Tensor to, Tensor from, Tensor rows) = 0;
  // to[rows[i]] += from[i]; rows distinct.
  virtual void ScatterAddRows(Stream& stream, Tensor to, Tensor from, Tensor rows) = 0;

  // --- products ---
  virtual void MatMul(Stream& stream, const MatMulArgs& args) = 0;
  // d_bias [1, N] fp32 += column sums of d_out [M, N].
  virtual void BiasBackward(Stream& stream, Tensor d_bias, Tensor d_out) = 0;

  // --- embeddings ---
  // out[i] (=, or += with accumulate) table[ids[i]]; ids [1, N] int32, table [V, H].
  virtual void Embedding(Stream& stream, Tensor out, Tensor table, Tensor ids, bool accumulate) = 0;
  // d_table [V, H] fp32 += d_out rows, in token order. Rows of padding_id get nothing (-1: all get
  // theirs).
  virtual void EmbeddingBackward(Stream& stream, Tensor d_table, Tensor d_out, Tensor ids,
                                 int32_t padding_id) = 0;

  // --- norms --- y = norm(x)·weight (+ bias); rows [N, cols]. statistics [N, 2·groups] fp32
  // receives (mean, 1/deviation) per group; mean is 0 for RMS norm. RMS norm rounds x/rms to T
  // before it multiplies by weight, as the reference models do. y may alias x.
  virtual void Norm(Stream& stream, const NormArgs& args, Tensor x, Tensor y,
                    Tensor statistics) = 0;
  // d_x = gradient (+ residual where defined: the gradient that flows past the norm; may alias
  // d_x); d_weight, d_bias [1, D] fp32 +=. d_x may alias d_y.
  virtual void NormBackward(Stream& stream, const NormArgs& args, Tensor d_y, Tensor x,
                            Tensor statistics, Tensor d_x, Tensor residual, Tensor d_weight,
                            Tensor d_bias) = 0;

  // --- activations ---
  virtual void ActivationForward(Stream& stream, Activation kind, Tensor x,
                                 Tensor y) = 0;  // y may alias x
  virtual void ActivationBackward(Stream& stream, Activation kind, Tensor d_y, Tensor x,
                                  Tensor d_x) = 0;  // d_x may alias d_y
  // x [N, 2I] holds gate and up side by side (gate first or second); y [N, I] = activation(gate) ·
  // up.
  virtual void GatedForward(Stream& stream, Activation kind, bool gate_first, Tensor x,
                            Tensor y) = 0;
  virtual void GatedBackward(Stream& stream, Activation kind, bool gate_first, Tensor d_y, Tensor x,
                             Tensor d_x) = 0;

  // --- dropout --- y = dropout(x) (+ residual where defined). y may alias x or residual. The
  // backward is the same call on the gradient, without residual.
  virtual void Dropout(Stream& stream, const DropoutArgs& args, Tensor x, Tensor residual,
                       Tensor y) = 0;

  // --- rotary positions --- In place on x [N, heads·head_dim]: the first 2·D components of each
  // head are rotated in pairs (i, i + D), "rotate half". cosine, sine [P, D] fp32, row =
  // positions[i] ([1, N] int32). inverse: by the negative angle, which is the backward.
  virtual void Rotary(Stream& stream, Tensor x, int64_t heads, Tensor positions, Tensor cosine,
                      Tensor sine, bool inverse) = 0;

  // --- attention --- q, out [Nq, heads·head_dim]; k, v [Nk, kv_heads·head_dim]; log_sum_exp [Nq,
  // heads] fp32 output. Never makes a [T, T] matrix.
  virtual void Attention(Stream& stream, const AttentionArgs& args, Tensor q, Tensor k, Tensor v,
                         Tensor out, Tensor log_sum_exp) = 0;
  virtual void AttentionBackward(Stream& stream, const AttentionArgs& args, Tensor d_out, Tensor q,
                                 Tensor k, Tensor v, Tensor out, Tensor log_sum_exp, Tensor d_q,
                                 Tensor d_k, Tensor d_v) = 0;

  // --- loss --- logits [R, V] T, labels [1, R] int32. *loss_sum* [1, 1] fp64 += Σ −ln
  // softmax(logits)[label], rows added in order. With gradient: logits are overwritten by (softmax
  // − onehot) · scale. row_losses [1, R] fp32: each row's loss, where defined.
  virtual void CrossEntropy(Stream& stream, Tensor logits, Tensor labels, bool gradient,
                            float scale, Tensor loss_sum, Tensor row_losses) = 0;

  // --- the update --- norm_state [1, 4] uint64: the sum of squares as a 128-bit fixed-point number
  // (low, high; 72 fractional bits), the count of non-finite elements and of sums too large for it,
  // unused. Adds one flat fp32 slice: squares are summed per 64-element line in double in a fixed
  // order, lines in fixed point, which is associative: the sum does not depend on where slices are
  // cut (at multiples of 64).
  virtual void SquaredNorm(Stream& stream, Tensor gradients, Tensor norm_state) = 0;
  // total [1, C] = the sum of the rows of records [R, C >= 4] uint64, in their order: columns 0..3
  // are a norm_state, whose fourth is a plain count; the others hold fp64.
  virtual void SumRecords(Stream& stream, Tensor records, Tensor total) = 0;
  // control [1, 4] fp32 = {norm, factor for the gradients (min(1, max_norm / (norm + 1e-6)), 1
  // where max_norm is 0), 1 to apply the update or 0 to skip it, 0}. Skips where that count is not
  // zero or loss_sum is not finite; then norm is NaN.
  virtual void FinishNorm(Stream& stream, Tensor norm_state, Tensor loss_sum, float max_norm,
                          Tensor control) = 0;
  // Loshchilov & Hutter, "Decoupled weight decay regularization" (2019), as torch.optim.AdamW
  // computes it:
  //   p *= 1 − lr·wd;  m = β1 m + (1−β1) g;  v = β2 v + (1−β2) g²;  p −= lr/(1−β1^t) · m /
  //   (√v/√(1−β2^t) + eps).
  virtual void AdamW(Stream& stream, const AdamWArgs& args) = 0;
};

// Threads <= 0: as many as the process may use.
std::unique_ptr<Backend> CreateCpuBackend(int threads);

}  // namespace tranche
