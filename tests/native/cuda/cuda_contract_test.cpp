#include "codec/cuda/cuda_backend.hpp"
#include "contract/backend_contract.hpp"

namespace ciera::testing {

INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract, ::testing::Values(BackendFactory([] {
                           return codec::cuda::cuda_support().available
                                      ? codec::cuda::make_cuda_backend(0)
                                      : nullptr;
                         })));

}  // namespace ciera::testing
