// In the place of liburing: answers with what it was called with.
extern "C" __attribute__((visibility("default"))) int io_uring_queue_init(unsigned entries, void* ring,
                                                                          unsigned flags) {
  return ring == nullptr ? static_cast<int>(entries * 100 + flags) : -1;
}

extern "C" __attribute__((visibility("default"))) int io_uring_submit(void* ring) { return ring != nullptr ? 1 : -1; }

extern "C" __attribute__((visibility("default"))) int io_uring_register_files(void*, const int*, unsigned count) {
  return static_cast<int>(count);
}
