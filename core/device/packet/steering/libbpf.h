// libbpf, loaded when the first ring of packets is made, so that preloaded programs without rings do not pay for it.
#pragma once

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "core/base/late_library.h"

namespace ringsock::soft {

extern const LateLibrary libbpf;

// In this namespace the names of libbpf's functions stand for these.
#define LATE_BPF(name) inline constexpr auto name = late<libbpf, #name, decltype(::name)>
LATE_BPF(bpf_link_create);
LATE_BPF(bpf_map_create);
LATE_BPF(bpf_map_delete_elem);
LATE_BPF(bpf_map_lookup_elem);
LATE_BPF(bpf_map_update_elem);
LATE_BPF(bpf_map__fd);
LATE_BPF(bpf_map__name);
LATE_BPF(bpf_map__reuse_fd);
LATE_BPF(bpf_map__set_initial_value);
LATE_BPF(bpf_object__close);
LATE_BPF(bpf_object__find_map_by_name);
LATE_BPF(bpf_object__find_program_by_name);
LATE_BPF(bpf_object__load);
LATE_BPF(bpf_object__next_map);
LATE_BPF(bpf_object__open_mem);
LATE_BPF(bpf_prog_load);
LATE_BPF(bpf_program__fd);
LATE_BPF(bpf_program__set_autoload);
LATE_BPF(libbpf_num_possible_cpus);
LATE_BPF(libbpf_set_print);
#undef LATE_BPF

}  // namespace ringsock::soft
