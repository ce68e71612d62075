// SPDX-License-Identifier: (MIT OR Apache-2.0)
//
// On the program's end of a pair: everything goes to the program's AF_XDP socket of this queue. One instance for each pair.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

SEC("xdp.frags") int pair_end(struct xdp_md *ctx)
{
    return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
