// What the machine's vector units can do at most: the denominator of the tensor benchmarks.
#pragma once

namespace tranche {

// Multiplications and additions per second of independent fused multiply-adds in registers, on
// `threads` threads.
double MeasurePeakFlops(int threads);

}  // namespace tranche
