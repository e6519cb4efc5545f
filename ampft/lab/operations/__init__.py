"""Which operations autocast runs in which dtype, on this device and with this build of torch."""
