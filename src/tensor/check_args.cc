#include "tensor/check_args.h"

#include <ostream>
#include <string>

#include "base/check.h"

namespace tranche {

std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  return out << std::string(DTypeName(t.dtype)) << '[' << t.rows << ", " << t.cols << "; stride "
             << t.stride << ']';
}

namespace check_args {
namespace {

bool IsFloat(const Tensor& t) { return t.dtype == DType::kFloat32 || t.dtype == DType::kBFloat16; }

bool Overlap(const Tensor& a, const Tensor& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const std::byte* a_end = a.data + ((a.rows - 1) * a.stride + a.cols) * SizeOf(a.dtype);
  const std::byte* b_end = b.data + ((b.rows - 1) * b.stride + b.cols) * SizeOf(b.dtype);
  if (a.data >= b_end || b.data >= a_end) return false;
  // Columns of one matrix, side by side: rows interleave without touching.
  if (a.dtype == b.dtype && a.stride == b.stride && a.rows > 1 && b.rows > 1) {
    const int64_t stride = a.stride * SizeOf(a.dtype);
    const int64_t apart = ((b.data - a.data) % stride + stride) % stride;
    return !(apart >= a.cols * SizeOf(a.dtype) && apart + b.cols * SizeOf(b.dtype) <= stride);
  }
  return true;
}

bool SameView(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.stride == b.stride && a.dtype == b.dtype;
}

void Defined(const Tensor& t) {
  TRANCHE_CHECK(t.defined()) << "undefined tensor";
  TRANCHE_CHECK(t.rows >= 0 && t.cols >= 0 && (t.rows <= 1 || t.stride >= t.cols)) << t;
}

void Shape(const Tensor& t, int64_t rows, int64_t cols) {
  Defined(t);
  TRANCHE_CHECK(t.rows == rows && t.cols == cols)
      << t << " should be [" << rows << ", " << cols << ']';
}

void Vector(const Tensor& t, int64_t cols, DType dtype) {
  Shape(t, 1, cols);
  TRANCHE_CHECK(t.dtype == dtype) << t << " should be " << std::string(DTypeName(dtype));
}

void Typed(const Tensor& t, DType dtype) {
  TRANCHE_CHECK(t.dtype == dtype) << t << " should be " << std::string(DTypeName(dtype));
}

void Float(const Tensor& t) {
  Defined(t);
  TRANCHE_CHECK(IsFloat(t)) << t;
}

void Apart(const Tensor& output, const Tensor& input) {
  TRANCHE_CHECK(!Overlap(output, input)) << "output " << output << " lies over input " << input;
}

// The same elements or none in common.
void ApartOrSame(const Tensor& output, const Tensor& input) {
  TRANCHE_CHECK(SameView(output, input) || !Overlap(output, input))
      << output << " lies partly over " << input;
}

void SameShape(const Tensor& a, const Tensor& b) { Shape(b, a.rows, a.cols); }

void SameShapeAndType(const Tensor& a, const Tensor& b) {
  Shape(b, a.rows, a.cols);
  Typed(b, a.dtype);
}

}  // namespace

void Fill(const Tensor& tensor, float value) {
  Defined(tensor);
  TRANCHE_CHECK(value == 0 || IsFloat(tensor) || tensor.dtype == DType::kFloat64) << tensor;
}

void HostCopy(const Tensor& tensor) {
  Defined(tensor);
  TRANCHE_CHECK(tensor.contiguous()) << tensor;
}

void Copy(const Tensor& to, const Tensor& from) {
  Defined(from);
  SameShape(from, to);
  TRANCHE_CHECK(to.dtype == from.dtype || (IsFloat(to) && IsFloat(from))) << to << " from " << from;
  Apart(to, from);
}

void Add(const Tensor& to, const Tensor& from) {
  Float(to);
  Float(from);
  SameShape(from, to);
  ApartOrSame(to, from);
}

void Rows(const Tensor& few, const Tensor& many, const Tensor& rows) {
  Float(few);
  Float(many);
  Vector(rows, few.rows, DType::kInt32);
  TRANCHE_CHECK_EQ(few.cols, many.cols);
  Apart(few, many);
}

void MatMul(const MatMulArgs& args) {
  Float(args.a);
  Float(args.b);
  Float(args.c);
  const DType dtype = args.a.dtype;
  Typed(args.b, dtype);
  TRANCHE_CHECK(args.c.dtype == dtype || args.c.dtype == DType::kFloat32) << args.c;
  const int64_t m = args.transpose_a ? args.a.cols : args.a.rows;
  const int64_t k = args.transpose_a ? args.a.rows : args.a.cols;
  const int64_t n = args.transpose_b ? args.b.rows : args.b.cols;
  TRANCHE_CHECK((args.transpose_b ? args.b.cols : args.b.rows) == k)
      << args.a << " times " << args.b;
  const auto [second, third] = args.seams;
  TRANCHE_CHECK(second >= 0 && second <= k && (third == 0 || (third >= second && third <= k)))
      << second << " and " << third << " of " << k;
  Shape(args.c, m, n);
  Apart(args.c, args.a);
  Apart(args.c, args.b);
  if (args.bias.defined()) Vector(args.bias, n, dtype);
  if (args.pre_activation.defined()) {
    Shape(args.pre_activation, m, n);
    Typed(args.pre_activation, dtype);
    Apart(args.pre_activation, args.c);
    Apart(args.pre_activation, args.a);
    Apart(args.pre_activation, args.b);
  }
  TRANCHE_CHECK((args.derivative != Activation::kNone) == args.derivative_input.defined());
  if (args.derivative_input.defined()) {
    Shape(args.derivative_input, m, n);
    Typed(args.derivative_input, dtype);
    Apart(args.c, args.derivative_input);
  }
  if (args.residual.defined()) {
    Shape(args.residual, m, n);
    Typed(args.residual, dtype);
    ApartOrSame(args.c, args.residual);
  }
}

void BiasBackward(const Tensor& d_bias, const Tensor& d_out) {
  Float(d_out);
  Vector(d_bias, d_out.cols, DType::kFloat32);
}

void Embedding(const Tensor& out, const Tensor& table, const Tensor& ids) {
  Float(out);
  Typed(table, out.dtype);
  Shape(table, table.rows, out.cols);
  Vector(ids, out.rows, DType::kInt32);
  Apart(out, table);
}

void EmbeddingBackward(const Tensor& d_table, const Tensor& d_out, const Tensor& ids) {
  Float(d_out);
  Shape(d_table, d_table.rows, d_out.cols);
  Typed(d_table, DType::kFloat32);
  Vector(ids, d_out.rows, DType::kInt32);
  Apart(d_table, d_out);
}

void Norm(const NormArgs& args, const Tensor& x, const Tensor& y, const Tensor& statistics) {
  Float(x);
  SameShapeAndType(x, y);
  TRANCHE_CHECK(args.groups > 0 && x.cols % args.groups == 0) << args.groups << " groups of " << x;
  const int64_t width = x.cols / args.groups;
  Vector(args.weight, width, x.dtype);
  if (args.bias.defined()) Vector(args.bias, width, x.dtype);
  Shape(statistics, x.rows, 2 * args.groups);
  Typed(statistics, DType::kFloat32);
  ApartOrSame(y, x);
}

void NormBackward(const NormArgs& args, const Tensor& d_y, const Tensor& x,
                  const Tensor& statistics, const Tensor& d_x, const Tensor& residual,
                  const Tensor& d_weight, const Tensor& d_bias) {
  Norm(args, x, x, statistics);
  SameShapeAndType(x, d_y);
  SameShapeAndType(x, d_x);
  ApartOrSame(d_x, d_y);
  Apart(d_x, x);
  if (residual.defined()) {
    SameShapeAndType(x, residual);
    ApartOrSame(d_x, residual);
  }
  const int64_t width = x.cols / args.groups;
  Vector(d_weight, width, DType::kFloat32);
  TRANCHE_CHECK(d_bias.defined() == args.bias.defined()) << "the bias and its gradient go together";
  if (d_bias.defined()) Vector(d_bias, width, DType::kFloat32);
}

void ActivationForward(const Tensor& x, const Tensor& y) {
  Float(x);
  SameShapeAndType(x, y);
  ApartOrSame(y, x);
}

void ActivationBackward(const Tensor& d_y, const Tensor& x, const Tensor& d_x) {
  Float(x);
  SameShapeAndType(x, d_y);
  SameShapeAndType(x, d_x);
  ApartOrSame(d_x, d_y);
  Apart(d_x, x);
}

void GatedForward(const Tensor& x, const Tensor& y) {
  Float(y);
  Shape(x, y.rows, 2 * y.cols);
  Typed(x, y.dtype);
  Apart(y, x);
}

void GatedBackward(const Tensor& d_y, const Tensor& x, const Tensor& d_x) {
  GatedForward(x, d_y);
  SameShapeAndType(x, d_x);
  Apart(d_x, d_y);
  Apart(d_x, x);
}

void Dropout(const DropoutArgs& args, const Tensor& x, const Tensor& residual, const Tensor& y) {
  Float(x);
  SameShapeAndType(x, y);
  ApartOrSame(y, x);
  if (residual.defined()) {
    SameShapeAndType(x, residual);
    ApartOrSame(y, residual);
  }
  TRANCHE_CHECK(args.probability >= 0 && args.probability < 1) << args.probability;
  Vector(args.token_keys, x.rows, DType::kUInt64);
}

void Rotary(const Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cosine,
            const Tensor& sine) {
  Float(x);
  Vector(positions, x.rows, DType::kInt32);
  TRANCHE_CHECK(heads > 0 && x.cols % heads == 0) << heads << " heads in " << x;
  Defined(cosine);
  Typed(cosine, DType::kFloat32);
  SameShapeAndType(cosine, sine);
  TRANCHE_CHECK(2 * cosine.cols <= x.cols / heads) << cosine << " for heads of " << x.cols / heads;
}

void Attention(const AttentionArgs& args, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& out, const Tensor& log_sum_exp) {
  TRANCHE_CHECK(args.heads > 0 && args.kv_heads > 0 && args.head_dim > 0 &&
                args.heads % args.kv_heads == 0)
      << args.heads << " heads, " << args.kv_heads << " key heads of " << args.head_dim;
  Float(q);
  Shape(q, q.rows, args.heads * args.head_dim);
  SameShapeAndType(q, out);
  Shape(k, k.rows, args.kv_heads * args.head_dim);
  Typed(k, q.dtype);
  SameShapeAndType(k, v);
  Shape(log_sum_exp, q.rows, args.heads);
  Typed(log_sum_exp, DType::kFloat32);
  TRANCHE_CHECK(args.segments >= 0 && args.max_length >= 0 && args.window >= 0);
  Vector(args.query_offsets, args.segments + 1, DType::kInt32);
  Vector(args.key_offsets, args.segments + 1, DType::kInt32);
  TRANCHE_CHECK(args.dropout.probability >= 0 && args.dropout.probability < 1)
      << args.dropout.probability;
  if (args.dropout.probability > 0) Vector(args.dropout.token_keys, q.rows, DType::kUInt64);
  Apart(out, q);
  Apart(out, k);
  Apart(out, v);
}

void AttentionBackward(const AttentionArgs& args, const Tensor& d_out, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out,
                       const Tensor& log_sum_exp, const Tensor& d_q, const Tensor& d_k,
                       const Tensor& d_v) {
  Attention(args, q, k, v, out, log_sum_exp);
  SameShapeAndType(out, d_out);
  SameShapeAndType(q, d_q);
  SameShapeAndType(k, d_k);
  SameShapeAndType(v, d_v);
  for (const Tensor* output : {&d_q, &d_k, &d_v}) {
    for (const Tensor* input : {&d_out, &q, &k, &v, &out}) Apart(*output, *input);
  }
}

void CrossEntropy(const Tensor& logits, const Tensor& labels, const Tensor& loss_sum,
                  const Tensor& row_losses) {
  Float(logits);
  Vector(labels, logits.rows, DType::kInt32);
  Vector(loss_sum, 1, DType::kFloat64);
  if (row_losses.defined()) Vector(row_losses, logits.rows, DType::kFloat32);
}

void SquaredNorm(const Tensor& gradients, const Tensor& norm_state) {
  Vector(gradients, gradients.cols, DType::kFloat32);
  Vector(norm_state, 4, DType::kUInt64);
}

void SumRecords(const Tensor& records, const Tensor& total) {
  TRANCHE_CHECK(records.dtype == DType::kUInt64 && records.cols >= 4);
  Vector(total, records.cols, DType::kUInt64);
}

void FinishNorm(const Tensor& norm_state, const Tensor& loss_sum, const Tensor& control) {
  Vector(norm_state, 4, DType::kUInt64);
  Vector(loss_sum, 1, DType::kFloat64);
  Vector(control, 4, DType::kFloat32);
}

void AdamW(const AdamWArgs& args) {
  const int64_t n = args.master.cols;
  Vector(args.master, n, DType::kFloat32);
  Vector(args.gradients, n, DType::kFloat32);
  Vector(args.m, n, DType::kFloat32);
  Vector(args.v, n, DType::kFloat32);
  if (args.weights.defined()) Vector(args.weights, n, DType::kBFloat16);
  Vector(args.control, 4, DType::kFloat32);
  TRANCHE_CHECK(args.step >= 1) << args.step;
}

}  // namespace check_args
}  // namespace tranche
