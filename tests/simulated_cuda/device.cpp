// A CUDA device whose memory is the host's and whose kernels are the CPU's. Preloaded into a CPU
// build of torch, it lets a program run with device="cuda" as on a machine with a GPU: dispatch,
// autocast, autograd, generators and copies are CUDA's; the arithmetic is the CPU's.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <torch/library.h>

#include <cstdlib>
#include <mutex>
#include <set>

#include "../fake_cuda/guard.h"

namespace {
// Memory of the host that says it is the device's, with counts and a limit as a GPU's has.
struct Counts {
  std::mutex mutex;
  size_t now = 0, peak = 0, limit = SIZE_MAX;
} counts;
struct Block {
  void* begin;
  size_t bytes;
};
void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(counts.mutex);
    counts.now -= block->bytes;
  }
  std::free(block->begin);
  delete block;
}
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = (bytes + 511) / 512 * 512;  // as CUDA's allocator does
    {
      std::lock_guard<std::mutex> lock(counts.mutex);
      TORCH_CHECK_WITH(
          OutOfMemoryError, counts.now + rounded <= counts.limit,
          "CUDA out of memory. Tried to allocate ", rounded, " bytes on the simulated GPU.");
      counts.now += rounded;
      counts.peak = std::max(counts.peak, counts.now);
    }
    void* begin = rounded == 0 ? nullptr : std::aligned_alloc(512, rounded);
    auto* block = new Block{begin, rounded};
    return {begin, block, &release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
Memory memory;

// A generator of the device: the CPU's, under the device's name.
struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator host;
  explicit DeviceGenerator(at::Generator inner)
      : c10::GeneratorImpl(kDevice, c10::DispatchKeySet(c10::DispatchKey::CUDA)), host(inner) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    set_state(*other->get_state());
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(host.clone()); }
};
at::Generator new_generator() {
  return at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator());
}
const at::Generator& default_generator() {
  static at::Generator generator = new_generator();
  return generator;
}
at::Generator host_generator(const at::Generator& generator) {
  if (generator.device().is_cpu()) return generator;
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host;
}

// The same memory as a tensor of the other device.
at::Tensor with_device(const at::Tensor& tensor, c10::Device device) {
  c10::Storage storage = tensor.storage();
  c10::Storage other(
      c10::Storage::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(storage.mutable_data(), new c10::Storage(storage),
                   [](void* kept) { delete static_cast<c10::Storage*>(kept); }, device),
      device.is_cpu() ? c10::GetCPUAllocator() : static_cast<c10::Allocator*>(&memory), true);
  auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(other), c10::DispatchKeySet(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}
at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return with_device(tensor, c10::kCPU);
}

at::Tensor empty_memory_format(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype),
      format);
}
at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::dtype_or_default(dtype));
}
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  host_view(self).copy_(host_view(source));
  return self;
}
const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  int64_t wanted = c10::multiply_integers(size);
  size_t bytes = (wanted + self.storage_offset()) * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    auto* storage = self.storage().unsafeGetStorageImpl();
    c10::DataPtr fresh = memory.allocate(bytes);
    memcpy(fresh.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format && *format != c10::MemoryFormat::Preserve)
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}
at::Tensor& set_storage(
    at::Tensor& self, c10::Storage storage, int64_t offset, c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, storage, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.data() == nullptr)
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  else
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return self;
}
at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source) {
  int64_t size = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, source, 0, size, {});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(
      self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage empty(c10::Storage::use_byte_size_t(), 0, memory.allocate(0), &memory, true);
  return set_storage(self, empty, 0, {0}, {});
}

// Whether a GPU would multiply these float32 numbers in TF32.
bool uses_tf32(const std::string& name) {
  static const std::set<std::string> products = {
      "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation"};
  return products.count(name) &&
      at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32;
}
// A copy with the ten bits of TF32's fraction, to nearest.
at::Tensor rounded_to_tf32(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat) return tensor;
  at::Tensor bits = tensor.contiguous().view(at::kInt);
  return (bits + 0xfff + (bits.bitwise_right_shift(13).bitwise_and(1))).bitwise_and(~0x1fff)
      .view(at::kFloat);
}

// Calls an operator of the CPU. Where it has no kernel for float16, it is computed in float32.
void call(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t begin) {
  const c10::DispatchKeySet host(c10::DispatchKey::CPU);
  const auto& arguments = op.schema().arguments();
  bool in_float32 = false;
  for (size_t i = 0; i < arguments.size(); i++) {
    c10::IValue& value = (*stack)[begin + i];
    if (arguments[i].name() == "half_to_float" && value.toBool()) {  // softmax in one kernel
      (*stack)[begin] = (*stack)[begin].toTensor().to(at::kFloat);
      value = false;
    } else if (arguments[i].name() == "input_dtype" && value.toScalarType() == at::kHalf) {
      value = at::kFloat;
      in_float32 = true;
    }
  }
  const torch::jit::Stack given(stack->begin() + begin, stack->end());
  if (!in_float32) {
    try {
      op.redispatchBoxed(host, stack);
      return;
    } catch (const c10::Error& error) {
      const std::string text = error.what();
      if (text.find("not implemented for 'Half'") == std::string::npos) throw;
    }
  }
  stack->resize(begin);
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t i = 0; i < given.size(); i++) {
    c10::IValue value = given[i];
    if (value.isTensor() && value.toTensor().defined() &&
        value.toTensor().scalar_type() == at::kHalf) {
      value = value.toTensor().to(at::kFloat);
      auto* alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite())
        written.emplace_back(given[i].toTensor(), value.toTensor());
    }
    stack->push_back(value);
  }
  op.redispatchBoxed(host, stack);
  for (auto& [half, computed] : written) half.resize_(computed.sizes()).copy_(computed);
  const size_t returned = stack->size() - op.schema().returns().size();
  for (size_t i = returned; i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    bool is_written = false;
    for (auto& [half, computed] : written)
      if (computed.is_same(value.toTensor())) {
        value = half;
        is_written = true;
        break;
      }
    if (!is_written && value.toTensor().scalar_type() == at::kFloat)
      value = value.toTensor().to(at::kHalf);
  }
}

// Any operator: the CPU's on the same memory. What it returns anew is the device's.
void run_on_host(
    const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const size_t begin = stack->size() - count;
  std::vector<std::pair<at::Tensor, at::Tensor>> given;  // of the device, of the host
  auto to_host = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    at::Tensor host = host_view(tensor);
    given.emplace_back(tensor, host);
    return host;
  };
  for (size_t i = 0; i < count; i++) {
    c10::IValue& value = (*stack)[begin + i];
    if (value.isTensor()) {
      value = to_host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(to_host(each));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional<at::Tensor>(to_host(*each)) : each);
      value = list;
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator()) {
      value = host_generator(value.toGenerator());
    } else if (
        value.isNone() && schema.arguments()[i].type()->kind() == c10::TypeKind::OptionalType &&
        schema.arguments()[i].name() == "generator") {
      value = host_generator(default_generator());
    }
  }
  if (uses_tf32(schema.name())) {
    for (size_t i = 0; i < count; i++) {
      c10::IValue& value = (*stack)[begin + i];
      const std::string& name = schema.arguments()[i].name();
      if (value.isTensor() && name != "self" && name != "out") {
        value = rounded_to_tf32(value.toTensor());
      } else if (value.isTensor() && name == "self" && schema.name().find("add") == std::string::npos) {
        value = rounded_to_tf32(value.toTensor());
      }
    }
  }
  call(op, stack, begin);
  auto to_device = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    for (auto& [device, host] : given) {
      if (!host.is_same(tensor)) continue;
      if (host.sizes() != device.sizes() || host.strides() != device.strides() ||
          host.data_ptr() != device.data_ptr()) {  // resized by an operator with `out`
        set_tensor(const_cast<at::Tensor&>(device), with_device(host, kDevice));
      }
      return device;
    }
    // A copy, so that the memory counts; a view of an input stays one.
    for (auto& [device, host] : given)
      if (host.storage().data() == tensor.storage().data()) return with_device(tensor, kDevice);
    at::Tensor made = at::detail::empty_strided_generic(
        tensor.sizes(), tensor.strides(), &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
        tensor.scalar_type());
    host_view(made).copy_(tensor);
    return made;
  };
  for (auto& [device, host] : given) to_device(host);
  const size_t returned = stack->size() - schema.returns().size();
  for (size_t i = returned; i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = to_device(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(to_device(each));
      value = list;
    }
  }
}

// The kernel that a GPU of compute capability 8.0 and above would choose.
int64_t fused_sdp_choice(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor&,
    const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool enable_gqa) {
  auto& context = at::globalContext();
  const bool is_16_bit = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (query.dim() != 4 || query.size(-1) % 8 != 0 || query.scalar_type() == at::kDouble)
    return static_cast<int64_t>(sdp::SDPBackend::math);
  if (context.userEnabledFlashSDP() && is_16_bit && !mask)
    return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  if (context.userEnabledMemEfficientSDP() && !enable_gqa)
    return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  return static_cast<int64_t>(sdp::SDPBackend::math);
}
}  // namespace

namespace at {
// REGISTER_CUDA_HOOKS needs a class of this name.
struct CUDAHooks : public CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  Allocator* getCUDADeviceAllocator() const override { return &memory; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return default_generator(); }
  Generator getNewGenerator(DeviceIndex) const override {
    static bool is_first = true;  // becomes `torch.cuda.default_generators[0]`
    if (!is_first) return new_generator();
    is_first = false;
    return default_generator();
  }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

namespace at::native {
const bool registered = [] {
  _fused_sdp_choice_stub.set_cuda_dispatch_ptr(&fused_sdp_choice);
  return true;
}();
}  // namespace at::native

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  c10::SetAllocator(c10::DeviceType::CUDA, &memory);
  library.impl("empty.memory_format", &empty_memory_format);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_source_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_nothing);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("_fused_sdp_choice", &fused_sdp_choice);
}

extern "C" {
size_t simulated_memory_now() { return counts.now; }
size_t simulated_memory_peak() { return counts.peak; }
void simulated_memory_reset_peak() { counts.peak = counts.now; }
void simulated_memory_limit(size_t bytes) { counts.limit = bytes; }
}
