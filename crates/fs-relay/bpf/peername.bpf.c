// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Gives a server's socket the name of the client behind the relay.
//
// The relay connects to the server through loopback. Before it does, it enters the addresses of that connection and the
// client's in `expected`. When the server's end is established, the name moves to the socket's own storage. accept(2),
// getpeername(2) and SO_PEERNAME then return it. The addresses of the connection itself stay as they are.
//
// The programs are attached to the root cgroup by bpf_link, so they disappear with the daemon's process.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FAMILY_INET 2
#define FAMILY_INET6 10
#ifndef barrier_var
#define barrier_var(var) asm volatile("" : "+r"(var))
#endif

// A connection as its server sees it. IPv4 is mapped into IPv6. All in network order, but for the cookie.
struct connection {
    __u32 peer[4];
    __u32 local[4];
    __be16 peer_port;
    __be16 local_port;
    __u32 zero;
    __u64 netns;
};

struct name {
    __u32 address[4];
    __be16 port;
    __be16 zero;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    // Connections between connect(2) and their establishment. Beyond these, a connection is reset.
    __uint(max_entries, 65536);
    __type(key, struct connection);
    __type(value, struct name);
} expected SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_SK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct name);
} names SEC(".maps");

// The child socket is locked since it was made, and accept(2) takes that lock. So no call sees it without its name.
SEC("sockops")
int established(struct bpf_sock_ops *ops)
{
    if (ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
        return 1;
    __u32 remote4 = ops->remote_ip4, local4 = ops->local_ip4, family = ops->family;
    // The verifier wants each field loaded from the context's own pointer, so the compiler must not merge two loads.
    barrier_var(remote4);
    barrier_var(local4);
    struct connection connection = {};
    if (family == FAMILY_INET) {
        connection.peer[2] = connection.local[2] = bpf_htonl(0xffff);
        connection.peer[3] = remote4;
        connection.local[3] = local4;
    } else if (family == FAMILY_INET6) {
        connection.peer[0] = ops->remote_ip6[0];
        connection.peer[1] = ops->remote_ip6[1];
        connection.peer[2] = ops->remote_ip6[2];
        connection.peer[3] = ops->remote_ip6[3];
        connection.local[0] = ops->local_ip6[0];
        connection.local[1] = ops->local_ip6[1];
        connection.local[2] = ops->local_ip6[2];
        connection.local[3] = ops->local_ip6[3];
    } else {
        return 1;
    }
    connection.peer_port = bpf_htons(bpf_ntohl(ops->remote_port));
    connection.local_port = bpf_htons(ops->local_port);
    connection.netns = bpf_get_netns_cookie(ops);
    struct name *name = bpf_map_lookup_elem(&expected, &connection);
    struct bpf_sock *sk = ops->sk;
    if (!name || !sk)
        return 1;
    struct name copy = *name;
    bpf_sk_storage_get(&names, sk, &copy, BPF_SK_STORAGE_GET_F_CREATE);
    bpf_map_delete_elem(&expected, &connection);
    return 1;
}

SEC("cgroup/getpeername4")
int peername4(struct bpf_sock_addr *ctx)
{
    struct bpf_sock *sk = ctx->sk;
    struct name *name = sk ? bpf_sk_storage_get(&names, sk, 0, 0) : 0;
    if (name) {
        ctx->user_ip4 = name->address[3];
        ctx->user_port = name->port;
    }
    return 1;
}

SEC("cgroup/getpeername6")
int peername6(struct bpf_sock_addr *ctx)
{
    struct bpf_sock *sk = ctx->sk;
    struct name *name = sk ? bpf_sk_storage_get(&names, sk, 0, 0) : 0;
    if (name) {
        ctx->user_ip6[0] = name->address[0];
        ctx->user_ip6[1] = name->address[1];
        ctx->user_ip6[2] = name->address[2];
        ctx->user_ip6[3] = name->address[3];
        ctx->user_port = name->port;
    }
    return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
