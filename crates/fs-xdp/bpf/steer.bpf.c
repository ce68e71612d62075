// SPDX-License-Identifier: (MIT OR Apache-2.0)
//
// Which packets are fastsock's? This program runs on every packet that a device receives, looks at its destination
// and redirects ours to the AF_XDP socket of the queue it came in on. Everything else goes on to the kernel
// untouched (XDP_PASS): other ports, other protocols, fragments, headers that do not parse, and packets on queues
// that have no socket, unless the device is guarded (`device_state`).
//
// Ours is
//   1. TCP to a port in active use (`port_bits[ACTIVE_TCP]`) at one of the host's addresses (`addresses`);
//   2. TCP or UDP to a (protocol, address, port) in `local_ports`, or to a (protocol, any, port) there at one of the
//      host's addresses, so that forwarded traffic passes;
//   3. an ICMP error that quotes a packet which was sent from such an address and port: the kernel has no socket that
//      it would tell.
//
// An address may be away: the host had it when connections of ours were made, and has lost it, or has it again and we have
// not heard of it yet. Then the kernel must not see TCP for our ports there: it has no sockets for them, and would end with a
// reset what goes on when the address is back. Such a packet is dropped, as the kernel drops what is not for the host;
// but one that it would forward passes: the address has gone to a host behind this one; and so does one for another link
// address than the device's own: the address has gone to a macvlan on the device.
//
// A fragment is the kernel's, but the first one of a TCP segment of ours is dropped: made whole, the kernel would answer it with
// a reset. It keeps what follows the first for its time, and says nothing (RFC 1122 3.3.2, RFC 8200 4.5).
//
// A port may have been the kernel's before, or be about to be again, with connections that live on (`enum share`): then
// the kernel is asked whether a packet is of one of its own.
//
// `port_bits` answers "not ours" for most packets without a hash lookup, so that the neighbours hardly notice us.
//
// Rebuild with build.sh beside this file; the object is checked in, and CI compares.

#include <linux/bpf.h>
#include "headers.h"

#define ETH_VLAN 0x8100
#define ETH_QINQ 0x88A8
#define FAMILY_INET 2
#define FAMILY_INET6 10

// More than any device has queues; an XSKMAP entry costs 8 bytes.
#define QUEUES_MAX 1024
// Listening sockets with an address of their own, times two families. 48 bytes each, allocated when used.
#define LOCAL_PORTS_MAX 65536
#define ADDRESSES_MAX 4096

struct vlan_hdr { __be16 tci; __be16 proto; };

struct local_key { struct address address; __be16 port; __u8 proto; __u8 zero; };

// The values of `local_ports` (0: the kernel's), and of `Share` in port_table.rs; `addresses` holds OURS and AWAY. What costs a look-up in
// the kernel's table is for a time of change only.
enum share {
    OURS = 1, // all packets
    FORMER,   // the kernel may have connections from before
    LEAVING,  // as FORMER, and new connections are the kernel's
    AWAY,     // TCP at an address that the host does not have, as far as is known
};

// What became of a packet, counted per CPU; user space sums up. The order is `SteerCounters` in program.rs.
enum verdict {
    REDIRECTED,       // to a socket of ours
    REDIRECTED_ICMP,  // errors that quote a flow of ours, to a socket of ours
    PASSED_PORT,      // TCP or UDP, not ours
    PASSED_PROTOCOL,  // neither TCP nor UDP over IP, or not IP at all, or of a VLAN
    PASSED_FRAGMENT,
    PASSED_MALFORMED, // headers cut short or nonsense
    PASSED_NO_SOCKET, // ours, but the queue has no socket
    DROPPED_AWAY,     // TCP to a port of ours at an address that is away
    DROPPED_FRAGMENT, // the first one of a TCP segment of ours
    DROPPED_NO_SOCKET, // ours, and the queue is to have a socket soon
    VERDICTS,
};
struct counters { __u64 count[VERDICTS]; };

enum { ACTIVE_TCP, LOCAL_TCP, LOCAL_UDP, PORT_SETS };
struct port_set { __u8 bits[8192]; };

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, QUEUES_MAX);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, PORT_SETS);
    __type(key, __u32);
    __type(value, struct port_set);
} port_bits SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, LOCAL_PORTS_MAX);
    __type(key, struct local_key);
    __type(value, __u8);
} local_ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, ADDRESSES_MAX);
    __type(key, struct address);
    __type(value, __u8);
} addresses SEC(".maps");

struct device_state {
    // Not zero: a queue without a socket is one that the device has just got (`ethtool -L`), and it will have one. What is ours
    // there is dropped until then, since the kernel would answer it with a reset.
    __u32 guarded;
    // The link address that the device has.
    __u8 mac[6];
    __u8 zero[2];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct device_state);
} device SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct counters);
} counters SEC(".maps");

static __always_inline int in_set(__u32 set, __be16 port)
{
    __u32 host = bpf_ntohs(port);
    // The compiler knows that a swap of 16 bits fits 16 bits and would leave the mask below out; verifiers before Linux
    // 6.18 do not know it and refuse the program. So the compiler must not know where `host` comes from.
    asm volatile("" : "+r"(host));
    struct port_set *ports = bpf_map_lookup_elem(&port_bits, &set);
    return ports && (ports->bits[(host >> 3) & 8191] >> (host & 7)) & 1;
}

// OURS, AWAY, or 0: not the host's.
static __always_inline int at_host(struct address *address)
{
    __u8 *share = bpf_map_lookup_elem(&addresses, address);
    return share ? *share : 0;
}

// Is (proto, address, port) an end of a flow of ours? An `enum share`, or 0. A function of its own, since four places ask.
static __attribute__((noinline)) int is_ours(__u8 proto, struct address *address, __be16 port)
{
    int host = -1;
    if (proto == PROTO_TCP && in_set(ACTIVE_TCP, port)) {
        host = at_host(address);
        if (host)
            return host;
    }
    if (!in_set(proto == PROTO_TCP ? LOCAL_TCP : LOCAL_UDP, port))
        return 0;
    struct local_key key = {.address = *address, .port = port, .proto = proto};
    __u8 *share = bpf_map_lookup_elem(&local_ports, &key);
    if (share)
        return *share;
    if (host < 0)
        host = at_host(address);
    // Of UDP no connection is lost: what the kernel's socket of the port gets is read there.
    if (!host || (host == AWAY && proto != PROTO_TCP))
        return 0;
    // Any address of the same family: the mapped prefix stays.
    __builtin_memset(&key.address, 0, sizeof(key.address));
    if (is_v4(address))
        key.address.words[2] = bpf_htonl(0xffff);
    share = bpf_map_lookup_elem(&local_ports, &key);
    if (!share)
        return 0;
    return host == AWAY ? AWAY : *share;
}

// Whether the kernel has the connection of a TCP packet to a port that is shared with it. `size` says of which family.
static __attribute__((noinline)) int is_kernels(struct xdp_md *ctx, struct bpf_sock_tuple *tuple, __u32 size)
{
    struct bpf_sock *socket = bpf_skc_lookup_tcp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
    if (!socket)
        return 0;
    int listens = socket->state == BPF_TCP_LISTEN;
    bpf_sk_release(socket);
    return !listens;
}

// What becomes of a TCP packet to an address that is away. The kernel's table says so at this moment, whatever we have heard.
static __attribute__((noinline)) enum verdict steer_away(struct xdp_md *ctx, struct bpf_fib_lookup *way)
{
    void *end = (void *)(long)ctx->data_end;
    struct eth_hdr *eth = (void *)(long)ctx->data;
    __u32 zero = 0;
    struct device_state *state = bpf_map_lookup_elem(&device, &zero);
    if (!state || (void *)(eth + 1) > end)
        return PASSED_MALFORMED;
    __u8 differs = 0;
    for (int i = 0; i < 6; i++)
        differs |= eth->dst[i] ^ state->mac[i];
    if (differs)
        return PASSED_PORT;
    way->ifindex = ctx->ingress_ifindex;
    way->l4_protocol = PROTO_TCP;
    long answer = bpf_fib_lookup(ctx, way, sizeof(*way), 0);
    // The host's own again, or a host that forwards nothing.
    if (answer < 0 || answer == BPF_FIB_LKUP_RET_NOT_FWDED || answer == BPF_FIB_LKUP_RET_FWD_DISABLED)
        return DROPPED_AWAY;
    return PASSED_PORT;
}

static __always_inline enum verdict steer_shared(struct xdp_md *ctx, int share, struct bpf_sock_tuple *tuple, __u32 size,
                                                 void *at, void *end)
{
    struct tcp_hdr *tcp = at;
    if ((void *)(tcp + 1) > end)
        return PASSED_MALFORMED;
    if (share == LEAVING && (tcp->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
        return PASSED_PORT;
    // A SYN too: the kernel may have its addresses in TIME-WAIT. If we took it, the kernel would get the rest of the connection.
    return is_kernels(ctx, tuple, size) ? PASSED_PORT : REDIRECTED;
}

// The first fragment of a packet whose transport header is at `at`.
static __always_inline enum verdict steer_fragment(struct xdp_md *ctx, __u8 proto, struct address *dst, void *at, void *end,
                                                   struct bpf_fib_lookup *way)
{
    struct ports_hdr *ports = at;
    if (proto != PROTO_TCP || (void *)(ports + 1) > end)
        return PASSED_FRAGMENT;
    int share = is_ours(proto, dst, ports->dst);
    if (share == AWAY)
        return steer_away(ctx, way) == DROPPED_AWAY ? DROPPED_AWAY : PASSED_FRAGMENT;
    // Of a port that is shared with the kernel it may be the kernel's.
    return share == OURS ? DROPPED_FRAGMENT : PASSED_FRAGMENT;
}

// ICMP destination unreachable (with "fragmentation needed"), time exceeded, parameter problem. The quoted packet
// is one that we sent, so its source is our end. Quoted IPv4 options and IPv6 extension headers pass.
static __always_inline enum verdict steer_icmp4(struct xdp_md *ctx, void *at, void *end)
{
    struct icmp_hdr *icmp = at;
    if ((void *)(icmp + 1) > end)
        return PASSED_MALFORMED;
    if (icmp->type != 3 && icmp->type != 11 && icmp->type != 12)
        return PASSED_PROTOCOL;
    struct ipv4_hdr *quoted = (void *)(icmp + 1);
    struct ports_hdr *ports = (void *)(quoted + 1);
    if ((void *)(ports + 1) > end || quoted->version_ihl != 0x45 || !is_transport(quoted->proto))
        return PASSED_PROTOCOL;
    struct address ours = mapped(quoted->src);
    int share = is_ours(quoted->proto, &ours, ports->src);
    if (share == AWAY)
        return PASSED_PROTOCOL;
    if (share > OURS && quoted->proto == PROTO_TCP) {
        struct bpf_sock_tuple tuple = {};
        tuple.ipv4.saddr = quoted->dst;
        tuple.ipv4.daddr = quoted->src;
        tuple.ipv4.sport = ports->dst;
        tuple.ipv4.dport = ports->src;
        if (is_kernels(ctx, &tuple, sizeof(tuple.ipv4)))
            return PASSED_PROTOCOL;
    }
    return share ? REDIRECTED_ICMP : PASSED_PROTOCOL;
}

// ICMPv6 errors have types below 128: destination unreachable, packet too big, time exceeded, parameter problem.
static __always_inline enum verdict steer_icmp6(struct xdp_md *ctx, void *at, void *end)
{
    struct icmp_hdr *icmp = at;
    if ((void *)(icmp + 1) > end)
        return PASSED_MALFORMED;
    if (icmp->type < 1 || icmp->type > 4)
        return PASSED_PROTOCOL;
    struct ipv6_hdr *quoted = (void *)(icmp + 1);
    struct ports_hdr *ports = (void *)(quoted + 1);
    if ((void *)(ports + 1) > end || !is_transport(quoted->next))
        return PASSED_PROTOCOL;
    struct address ours;
    __builtin_memcpy(&ours, quoted->src, sizeof(ours));
    int share = is_ours(quoted->next, &ours, ports->src);
    if (share == AWAY)
        return PASSED_PROTOCOL;
    if (share > OURS && quoted->next == PROTO_TCP) {
        struct bpf_sock_tuple tuple = {};
        __builtin_memcpy(tuple.ipv6.saddr, quoted->dst, sizeof(quoted->dst));
        __builtin_memcpy(tuple.ipv6.daddr, quoted->src, sizeof(quoted->src));
        tuple.ipv6.sport = ports->dst;
        tuple.ipv6.dport = ports->src;
        if (is_kernels(ctx, &tuple, sizeof(tuple.ipv6)))
            return PASSED_PROTOCOL;
    }
    return share ? REDIRECTED_ICMP : PASSED_PROTOCOL;
}

// Is a UDP packet of ours more than one datagram? A virtual peer sends datagrams of one size as one packet (UDP_SEGMENT),
// which is longer than the MTU. Only the kernel knows their size, and cuts them apart for its socket of the port, where they are
// read. In native mode the peer's kernel cuts them, so only the program for large packets asks.
static __always_inline int is_several(struct xdp_md *ctx, int large, __u8 proto, __be16 ip_len, __u32 header)
{
    __u32 len = bpf_ntohs(ip_len) + header;
    return large && proto == PROTO_UDP && bpf_check_mtu(ctx, 0, &len, 0, 0) == BPF_MTU_CHK_RET_FRAG_NEEDED;
}

static __always_inline enum verdict steer_ipv4(struct xdp_md *ctx, int large, void *at, void *end)
{
    struct ipv4_hdr *ip = at;
    if ((void *)(ip + 1) > end)
        return PASSED_MALFORMED;
    __u32 header = (ip->version_ihl & 15) * 4;
    if ((ip->version_ihl >> 4) != 4 || header < sizeof(*ip))
        return PASSED_MALFORMED;
    // More fragments, or an offset: the ports are not there, or the rest is not.
    if (ip->frag & bpf_htons(0x3fff)) {
        if (ip->frag & bpf_htons(0x1fff))
            return PASSED_FRAGMENT;
        struct address to = mapped(ip->dst);
        struct bpf_fib_lookup way = {.family = FAMILY_INET, .tos = ip->tos, .ipv4_src = ip->src, .ipv4_dst = ip->dst};
        return steer_fragment(ctx, ip->proto, &to, at + header, end, &way);
    }
    if (ip->proto == PROTO_ICMP)
        return steer_icmp4(ctx, at + header, end);
    if (!is_transport(ip->proto))
        return PASSED_PROTOCOL;
    struct address dst = mapped(ip->dst);
    struct ports_hdr *ports = at + header;
    if ((void *)(ports + 1) > end)
        return PASSED_MALFORMED;
    int share = is_ours(ip->proto, &dst, ports->dst);
    if (share && is_several(ctx, large, ip->proto, ip->len, 0))
        return PASSED_FRAGMENT;
    if (share <= OURS || ip->proto != PROTO_TCP)
        return share ? REDIRECTED : PASSED_PORT;
    if (share == AWAY) {
        struct bpf_fib_lookup way = {.family = FAMILY_INET, .tos = ip->tos, .ipv4_src = ip->src, .ipv4_dst = ip->dst};
        return steer_away(ctx, &way);
    }
    struct bpf_sock_tuple tuple = {};
    tuple.ipv4.saddr = ip->src;
    tuple.ipv4.daddr = ip->dst;
    tuple.ipv4.sport = ports->src;
    tuple.ipv4.dport = ports->dst;
    return steer_shared(ctx, share, &tuple, sizeof(tuple.ipv4), ports, end);
}

static __always_inline enum verdict steer_ipv6(struct xdp_md *ctx, int large, void *at, void *end)
{
    struct ipv6_hdr *ip = at;
    if ((void *)(ip + 1) > end)
        return PASSED_MALFORMED;
    if ((bpf_ntohl(ip->flow) >> 28) != 6)
        return PASSED_MALFORMED;
    if (ip->next == PROTO_ICMP6)
        return steer_icmp6(ctx, ip + 1, end);
    // Only a transport header that follows directly; a fragment header counts as what it is.
    if (ip->next == PROTO_FRAGMENT) {
        struct fragment_hdr *fragment = (void *)(ip + 1);
        if ((void *)(fragment + 1) > end || fragment->offset & bpf_htons(0xfff8))
            return PASSED_FRAGMENT;
        struct address to;
        __builtin_memcpy(&to, ip->dst, sizeof(to));
        struct bpf_fib_lookup way = {.family = FAMILY_INET6};
        __builtin_memcpy(way.ipv6_src, ip->src, sizeof(ip->src));
        __builtin_memcpy(way.ipv6_dst, ip->dst, sizeof(ip->dst));
        return steer_fragment(ctx, fragment->next, &to, fragment + 1, end, &way);
    }
    if (!is_transport(ip->next))
        return PASSED_PROTOCOL;
    struct address dst;
    __builtin_memcpy(&dst, ip->dst, sizeof(dst));
    struct ports_hdr *ports = (void *)(ip + 1);
    if ((void *)(ports + 1) > end)
        return PASSED_MALFORMED;
    int share = is_ours(ip->next, &dst, ports->dst);
    if (share && is_several(ctx, large, ip->next, ip->len, sizeof(*ip)))
        return PASSED_FRAGMENT;
    if (share <= OURS || ip->next != PROTO_TCP)
        return share ? REDIRECTED : PASSED_PORT;
    if (share == AWAY) {
        struct bpf_fib_lookup way = {.family = FAMILY_INET6};
        __builtin_memcpy(way.ipv6_src, ip->src, sizeof(ip->src));
        __builtin_memcpy(way.ipv6_dst, ip->dst, sizeof(ip->dst));
        return steer_away(ctx, &way);
    }
    struct bpf_sock_tuple tuple = {};
    __builtin_memcpy(tuple.ipv6.saddr, ip->src, sizeof(ip->src));
    __builtin_memcpy(tuple.ipv6.daddr, ip->dst, sizeof(ip->dst));
    tuple.ipv6.sport = ports->src;
    tuple.ipv6.dport = ports->dst;
    return steer_shared(ctx, share, &tuple, sizeof(tuple.ipv6), ports, end);
}

static __always_inline enum verdict steer(struct xdp_md *ctx, int large)
{
    void *end = (void *)(long)ctx->data_end;
    struct eth_hdr *eth = (void *)(long)ctx->data;
    if ((void *)(eth + 1) > end)
        return PASSED_MALFORMED;
    __be16 proto = eth->proto;
    void *at = eth + 1;
    if (proto == bpf_htons(ETH_VLAN) || proto == bpf_htons(ETH_QINQ)) {
        struct vlan_hdr *vlan = at;
        if ((void *)(vlan + 1) > end)
            return PASSED_MALFORMED;
        // Number 0 is a priority only. A VLAN is another device's (eth0.5).
        if (vlan->tci & bpf_htons(0x0fff))
            return PASSED_PROTOCOL;
        proto = vlan->proto;
        at = vlan + 1;
    }
    if (proto == bpf_htons(ETH_IPV4))
        return steer_ipv4(ctx, large, at, end);
    if (proto == bpf_htons(ETH_IPV6))
        return steer_ipv6(ctx, large, at, end);
    return PASSED_PROTOCOL;
}

static __always_inline int run(struct xdp_md *ctx, int large)
{
    enum verdict verdict = steer(ctx, large);
    int action = XDP_PASS;
    __u32 zero = 0;
    if (verdict == REDIRECTED || verdict == REDIRECTED_ICMP) {
        // Without a socket in the map the helper returns the fallback.
        action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
        if (action != XDP_REDIRECT) {
            struct device_state *state = bpf_map_lookup_elem(&device, &zero);
            verdict = state && state->guarded ? DROPPED_NO_SOCKET : PASSED_NO_SOCKET;
        }
    }
    if (verdict == DROPPED_AWAY || verdict == DROPPED_FRAGMENT || verdict == DROPPED_NO_SOCKET)
        action = XDP_DROP;
    struct counters *mine = bpf_map_lookup_elem(&counters, &zero);
    if (mine && verdict < VERDICTS)
        mine->count[verdict]++;
    return action;
}

SEC("xdp")
int fastsock(struct xdp_md *ctx)
{
    return run(ctx, 0);
}

// The same for packets in several buffers (kernel 5.18 and later), where the socket has multi-buffer too.
SEC("xdp.frags")
int fastsock_frags(struct xdp_md *ctx)
{
    return run(ctx, 1);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
