#include "codec/host/host_backend.hpp"
#include "contract/backend_contract.hpp"

namespace ciera::testing {

INSTANTIATE_TEST_SUITE_P(Host, BackendContract, ::testing::Values(BackendFactory([] {
                           return codec::host::make_host_backend(2);
                         })));

}  // namespace ciera::testing
