#include "model/pass.h"

namespace tranche {
namespace {

NormArgs MakeNormArgs(const GroupParams& params, const NormSpec& spec) {
  return {.kind = spec.kind,
          .eps = static_cast<float>(spec.eps),
          .groups = spec.groups,
          .weight = params.weight(spec.weight),
          .bias = params.weight(spec.bias)};
}

}  // namespace

DropoutArgs Pass::Dropout(double probability, int group, DropoutPlace place) const {
  DropoutArgs args;
  if (!dropout || probability == 0) return args;
  args.probability = static_cast<float>(probability);
  args.key = dropout_key;
  args.site = static_cast<uint32_t>(group) * static_cast<uint32_t>(DropoutPlace::kCount) +
              static_cast<uint32_t>(place);
  args.token_keys = batch.token_keys;
  return args;
}

void AffineBackward(const Pass& pass, const GroupParams& params, AffineRoles roles, Tensor input,
                    Tensor d_output, Tensor residual, Tensor d_input) {
  pass.backend.MatMul(pass.stream, {.a = d_output,
                                    .b = input,
                                    .c = params.gradient(roles.weight),
                                    .transpose_a = true,
                                    .accumulate = true});
  if (const Tensor d_bias = params.gradient(roles.bias); d_bias.defined()) {
    pass.backend.BiasBackward(pass.stream, d_bias, d_output);
  }
  if (!d_input.defined()) return;
  pass.backend.MatMul(pass.stream, {.a = d_output,
                                    .b = params.weight(roles.weight),
                                    .c = d_input,
                                    .seams = params.seams(roles.weight),
                                    .residual = residual});
}

void AffineDropoutResidual(const Pass& pass, const GroupParams& params, AffineRoles roles,
                           const DropoutArgs& dropout, Tensor input, Tensor residual,
                           Tensor temporary, Tensor output) {
  MatMulArgs product{.a = input,
                     .b = params.weight(roles.weight),
                     .c = output,
                     .transpose_b = true,
                     .bias = params.weight(roles.bias)};
  if (dropout.probability == 0) {
    product.residual = residual;
    pass.backend.MatMul(pass.stream, product);
    return;
  }
  if (residual.data == output.data) product.c = temporary;
  pass.backend.MatMul(pass.stream, product);
  pass.backend.Dropout(pass.stream, dropout, product.c, residual, output);
}

Tensor ProductGradient(const Pass& pass, const DropoutArgs& dropout, Tensor d_output,
                       Tensor temporary) {
  if (dropout.probability == 0) return d_output;
  const Tensor d_product = Rows(temporary, d_output.rows);
  pass.backend.Dropout(pass.stream, dropout, d_output, Tensor(), d_product);
  return d_product;
}

void NormForward(const Pass& pass, const GroupParams& params, const NormSpec& spec, Tensor x,
                 Tensor y, Tensor statistics) {
  pass.backend.Norm(pass.stream, MakeNormArgs(params, spec), x, y, statistics);
}

void NormBackward(const Pass& pass, const GroupParams& params, const NormSpec& spec, Tensor d_y,
                  Tensor x, Tensor statistics, Tensor d_x, Tensor residual) {
  pass.backend.NormBackward(pass.stream, MakeNormArgs(params, spec), d_y, x, statistics, d_x,
                            residual, params.gradient(spec.weight), params.gradient(spec.bias));
}

}  // namespace tranche
