// SPDX-License-Identifier: GPL-2.0
/* Redirects data between two sockets of one host by sockmap. The program adds each connection of a cgroup under its addresses.
 * Data that one end sends enters the peer's receive queue, without TCP and the loopback device. IPv4 only. */

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2

/* Addresses in network byte order, ports in the host's. */
struct ends {
    __u32 own_address, peer_address;
    __u32 own_port, peer_port;
};

struct {
    __uint(type, BPF_MAP_TYPE_SOCKHASH);
    __uint(max_entries, 16384);
    __type(key, struct ends);
    __type(value, __u32);
} sockets SEC(".maps");

/* Messages redirected. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} redirected SEC(".maps");

SEC("sockops")
int keep(struct bpf_sock_ops *ops)
{
    struct ends ends = {};

    if (ops->family != AF_INET)
        return 0;
    if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
        return 0;
    ends.own_address = ops->local_ip4;
    ends.peer_address = ops->remote_ip4;
    ends.own_port = ops->local_port;
    ends.peer_port = bpf_ntohl(ops->remote_port);
    bpf_sock_hash_update(ops, &sockets, &ends, BPF_ANY);
    return 0;
}

SEC("sk_msg")
int redirect(struct sk_msg_md *msg)
{
    struct ends peer = {};
    __u64 *count;
    __u32 first = 0;

    peer.own_address = msg->remote_ip4;
    peer.peer_address = msg->local_ip4;
    peer.own_port = bpf_ntohl(msg->remote_port);
    peer.peer_port = msg->local_port;
    /* A connection without its peer in the map is not redirected. */
    if (bpf_msg_redirect_hash(msg, &sockets, &peer, BPF_F_INGRESS) == SK_PASS) {
        count = bpf_map_lookup_elem(&redirected, &first);
        if (count)
            __sync_fetch_and_add(count, 1);
    }
    return SK_PASS;
}

char _license[] SEC("license") = "GPL";
