// A CUDA device without memory. Preloaded into a CPU build of torch, it lets FakeTensorMode run
// forward, backward, gradient scaler and optimizer with device="cuda". It must be preloaded, because
// torch looks for its CUDA hooks only once: loaded later, backward passes raise.
#include "guard.h"

namespace at {
// REGISTER_CUDA_HOOKS needs a class of this name.
struct CUDAHooks : public CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at
