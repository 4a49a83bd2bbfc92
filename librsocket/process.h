// What the process's rsockets share: configuration and devices.
#pragma once

#include "core/config/rsocket_config.h"
#include "core/verbs/registry.h"

namespace ringsock::rs {

/// Made on first use, never destroyed: a program may use sockets while its static objects are being destroyed.
struct Process {
  explicit Process(config::RsocketConfig settings);

  config::RsocketConfig config;
  verbs::DeviceRegistry registry;
};

/// Reads the environment and the configuration files the first time. Thread-safe.
Process& process();

}  // namespace ringsock::rs
