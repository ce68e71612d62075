// SPDX-License-Identifier: (MIT OR Apache-2.0)
//
// Several programs share a device, and the kernel is the broker. Two programs for tcx (Linux 6.6):
//
//   wire -- eth0 --(share_in: leases)--> pair of program A --> A's AF_XDP socket
//                     \-> no lease: the kernel's stack, as without us
//   A's AF_XDP socket --> pair --(share_out: leases)--> eth0 -- wire
//                                    \-> forged: dropped and counted
//
// Maps and the link of share_in are pinned, so no user-space process handles a packet, and none has to live.
//
// Inwards: after GRO, so frames may be super-segments with unfinished checksums. bpf_redirect_peer lets such a frame arrive at
// the program's end of the pair, whose XDP program in generic mode (end.bpf.c) puts it into the socket. ARP, NDISC, other ICMP,
// fragments, tagged frames, and frames for another link address are the kernel's.
//
// Outwards: bpf_redirect_neigh makes the kernel find the next hop and write the link-layer header. So a program knows no
// neighbours and sends neither ARP nor NDISC, what it writes as link addresses never leaves, and the kernel keeps its neighbours
// fresh.
//
// Super-segments (share_segments): a program may also send runs of TCP segments as one packet by a packet socket on its end of the
// pair. Such a packet names where its checksum is to be written, and by that a program could change any two bytes after the check:
// its source port, say. So the place is compared with that of the header. The kernel's struct is read for it (CO-RE, by the kernel's
// BTF). Where that cannot be, the program's end of a pair has no checksum offload and no packet socket, and share_out is the check.
//
// Rebuild with fs-xdp/bpf/build.sh FILE; the object is checked in, and CI compares.

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include "../../fs-xdp/bpf/headers.h"

#define PACKET_HOST 0
#define TCX_NEXT -1
#define TCX_DROP 2
#define CHECKSUM_PARTIAL 3
#define TCP_CHECKSUM 16 // its place in the header
#define UDP_CHECKSUM 6
// SKB_GSO_* of linux/skbuff.h
#define GSO_TCPV4 (1 << 0)
#define GSO_DODGY (1 << 1) // from user space
#define GSO_TCP_ECN (1 << 2)
#define GSO_TCPV6 (1 << 4)

// Programs that can have a pair at one time. Slot 0 is nobody.
#define SLOTS 256
// Shortest segment of a super-segment, in bytes of payload. Lower: one send call makes thousands of packets; higher than fs-xdp's
// PACKET_MIN without headers: runs of small segments are lost.
#define SEGMENT_MIN 256
#define BY_ADDRESS 0xffff
#define ADDRESSES_MAX 4096
#define LEASES_MAX 262144

// What share_segments reads of the kernel's packet.
struct sk_buff {
    __u32 end; // of the linear part: struct skb_shared_info follows
    unsigned char *head, *data;
    __u8 ip_summed : 2;
    __u16 csum_start, csum_offset;
} __attribute__((preserve_access_index));
struct skb_shared_info { __u32 gso_type; } __attribute__((preserve_access_index));

struct lease_key { struct address address; __be16 port; __u8 proto; __u8 zero; };

// The program that has a port: TCP and UDP over IPv4, then over IPv6. A slot: at each of the host's addresses. BY_ADDRESS: see `leases`.
struct port { __u16 slot[4]; };

// Counted for each slot and CPU; user space sums up. The order is that of `Counters` in counters.rs.
enum {
    IN_FRAMES,         // to the program
    IN_ICMP,           // ICMP errors that quote a packet of the program's
    IN_FRAGMENT,       // first fragments of TCP to a leased port: dropped, since the kernel would answer the whole with a reset
    OUT_FRAMES,        // from the program, sent
    DROP_ADDRESS,      // the source address is not the host's
    DROP_PORT,         // the source port is not leased to this program
    DROP_PROTOCOL,     // neither TCP nor UDP directly over IP, or a VLAN tag
    DROP_FRAGMENT,     // fragments hide their ports
    DROP_MALFORMED,
    DROP_LENGTH,       // longer than the device's MTU
    DROP_LOCAL,        // to an address of this host, which is not behind the device
    COUNTERS,
};
struct counters { __u64 count[COUNTERS]; };

// A pair. `token` and `uid` are the daemon's: with them a program shows the next daemon that the slot is its own.
struct slot {
    __u32 ifindex; // the host's end
    __u32 uid;
    __u64 token[2];
};

#define MAP(name_, type_, flags_, entries_, key_, value_) \
    struct { __uint(type, type_); __uint(map_flags, flags_); __uint(max_entries, entries_); __type(key, key_); \
             __type(value, value_); __uint(pinning, LIBBPF_PIN_BY_NAME); } name_ SEC(".maps")

// An array: one load for the packets that are nobody's.
MAP(ports, BPF_MAP_TYPE_ARRAY, 0, 65536, __u32, struct port);
MAP(leases, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, LEASES_MAX, struct lease_key, __u16);
MAP(addresses, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, ADDRESSES_MAX, struct address, __u8);
MAP(slots, BPF_MAP_TYPE_ARRAY, 0, SLOTS, __u32, struct slot);
MAP(slot_of, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, SLOTS * 2, __u32, __u16); // the index of the host's end -> slot
MAP(uplink, BPF_MAP_TYPE_ARRAY, 0, 1, __u32, __u32);                         // the index of the device
MAP(statistics, BPF_MAP_TYPE_PERCPU_ARRAY, 0, SLOTS, __u32, struct counters);

static __always_inline void count(__u32 slot, __u32 what)
{
    struct counters *mine = bpf_map_lookup_elem(&statistics, &slot);
    if (mine && what < COUNTERS)
        mine->count[what]++;
}

// Whose is (proto, address, port) of this host? A slot, or 0: the kernel's.
static __attribute__((noinline)) int owner(__u8 proto, struct address *address, __be16 port)
{
    if (!address)
        return 0;
    __u32 index = bpf_ntohs(port);
    asm volatile("" : "+r"(index)); // older verifiers need the bound, see steer.bpf.c
    index &= 0xffff;
    struct port *at = bpf_map_lookup_elem(&ports, &index);
    if (!at)
        return 0;
    __u32 which = (proto == PROTO_UDP) + (is_v4(address) ? 0 : 2);
    __u16 slot = at->slot[which & 3];
    // A socket can be bound to an address that is not the host's (IP_FREEBIND), and addresses go.
    if (slot == 0 || !bpf_map_lookup_elem(&addresses, address))
        return 0;
    if (slot != BY_ADDRESS)
        return slot;
    struct lease_key key = {.address = *address, .port = port, .proto = proto};
    __u16 *leased = bpf_map_lookup_elem(&leases, &key);
    if (leased)
        return *leased;
    // Any address of the same family: the mapped prefix stays.
    key.address.words[0] = key.address.words[1] = key.address.words[3] = 0;
    key.address.words[2] = is_v4(address) ? bpf_htonl(0xffff) : 0;
    leased = bpf_map_lookup_elem(&leases, &key);
    return leased ? *leased : 0;
}

// ---- the device, inwards ----

// The receiver of this packet: a program's slot, or 0 for the kernel. `what`: how it is counted.
static __always_inline int receiver4(void *at, void *end, __u32 *what)
{
    struct ipv4_hdr *ip = at;
    if ((void *)(ip + 1) > end)
        return 0;
    __u32 header = (ip->version_ihl & 15) * 4;
    if ((ip->version_ihl >> 4) != 4 || header < sizeof(*ip))
        return 0;
    at += header;
    if (ip->proto == PROTO_ICMP) {
        struct icmp_hdr *icmp = at;
        struct ipv4_hdr *quoted = (void *)(icmp + 1);
        struct ports_hdr *ports = (void *)(quoted + 1);
        if ((void *)(ports + 1) > end || ip->frag & bpf_htons(0x3fff) ||
            (icmp->type != 3 && icmp->type != 11 && icmp->type != 12) || quoted->version_ihl != 0x45 ||
            !is_transport(quoted->proto))
            return 0;
        struct address ours = mapped(quoted->src);
        *what = IN_ICMP;
        return owner(quoted->proto, &ours, ports->src);
    }
    struct ports_hdr *ports = at;
    if (!is_transport(ip->proto) || ip->frag & bpf_htons(0x1fff) || (void *)(ports + 1) > end)
        return 0;
    // Fragments of UDP are made whole by the kernel, and read at the socket that holds the port there.
    if (ip->frag & bpf_htons(0x2000)) {
        if (ip->proto != PROTO_TCP)
            return 0;
        *what = IN_FRAGMENT;
    }
    struct address to = mapped(ip->dst);
    return owner(ip->proto, &to, ports->dst);
}

static __always_inline int receiver6(void *at, void *end, __u32 *what)
{
    struct ipv6_hdr *ip = at;
    if ((void *)(ip + 1) > end || (bpf_ntohl(ip->flow) >> 28) != 6)
        return 0;
    struct address address;
    at = ip + 1;
    if (ip->next == PROTO_ICMP6) {
        struct icmp_hdr *icmp = at;
        struct ipv6_hdr *quoted = (void *)(icmp + 1);
        struct ports_hdr *ports = (void *)(quoted + 1);
        if ((void *)(ports + 1) > end || icmp->type < 1 || icmp->type > 4 || !is_transport(quoted->next))
            return 0;
        __builtin_memcpy(&address, quoted->src, sizeof(address));
        *what = IN_ICMP;
        return owner(quoted->next, &address, ports->src);
    }
    __u8 proto = ip->next;
    if (proto == PROTO_FRAGMENT) {
        struct fragment_hdr *fragment = at;
        if ((void *)(fragment + 1) > end || fragment->offset & bpf_htons(0xfff8) || fragment->next != PROTO_TCP)
            return 0;
        proto = PROTO_TCP;
        at = fragment + 1;
        *what = IN_FRAGMENT;
    }
    struct ports_hdr *ports = at;
    if (!is_transport(proto) || (void *)(ports + 1) > end)
        return 0;
    __builtin_memcpy(&address, ip->dst, sizeof(address));
    return owner(proto, &address, ports->dst);
}

static __always_inline int is_udp(__be16 proto, struct eth_hdr *eth, void *end)
{
    struct ipv4_hdr *v4 = (void *)(eth + 1);
    struct ipv6_hdr *v6 = (void *)(eth + 1);
    if (proto == bpf_htons(ETH_IPV4))
        return (void *)(v4 + 1) <= end && v4->proto == PROTO_UDP;
    return (void *)(v6 + 1) <= end && v6->next == PROTO_UDP;
}

SEC("classifier") int share_in(struct __sk_buff *skb)
{
    __be16 proto = skb->protocol;
    // A VLAN tag has been taken out of the frame by now: it is for another device (eth0.5). Number 0 is a priority only.
    if (skb->pkt_type != PACKET_HOST || (skb->vlan_present && (skb->vlan_tci & 0x0fff)))
        return TCX_NEXT;
    if (proto != bpf_htons(ETH_IPV4) && proto != bpf_htons(ETH_IPV6))
        return TCX_NEXT;
    pull(skb);
    void *end = (void *)(long)skb->data_end;
    struct eth_hdr *eth = (void *)(long)skb->data;
    if ((void *)(eth + 1) > end)
        return TCX_NEXT;
    __u32 what = IN_FRAMES;
    __u32 slot = proto == bpf_htons(ETH_IPV4) ? receiver4(eth + 1, end, &what) : receiver6(eth + 1, end, &what);
    if (!slot)
        return TCX_NEXT;
    // Datagrams of one size as one packet (UDP_SEGMENT of a virtual peer, GRO): nobody after us knows the size. The kernel cuts
    // them apart for its socket of the port, where the program reads them.
    if (skb->gso_size && is_udp(proto, eth, end))
        return TCX_NEXT;
    count(slot, what);
    struct slot *pair = bpf_map_lookup_elem(&slots, &slot);
    if (what == IN_FRAGMENT || !pair)
        return TCX_DROP;
    return bpf_redirect_peer(pair->ifindex, 0);
}

// ---- the host's end of a pair: what its program sends ----

// Whether the program with this slot may send from (proto, source, port) to `to`. The counter.
static __always_inline __u32 judge(__u32 slot, __u8 proto, struct address *source, __be16 port, struct address *to)
{
    if ((__u32)owner(proto, source, port) != slot)
        return bpf_map_lookup_elem(&addresses, source) ? DROP_PORT : DROP_ADDRESS;
    return bpf_map_lookup_elem(&addresses, to) ? DROP_LOCAL : OUT_FRAMES;
}

// Whether the kernel will write the checksum where it belongs, and cut a super-segment of TCP into segments that are not too many.
// `transport`: the header's place in the frame.
static __always_inline int is_sound(struct __sk_buff *skb, __u8 kind, int is_v6, __u32 transport)
{
    struct sk_buff *inner = (void *)skb;
    int partial = BPF_CORE_READ_BITFIELD_PROBED(inner, ip_summed) == CHECKSUM_PARTIAL;
    unsigned char *head = BPF_CORE_READ(inner, head);
    if (partial) {
        __u64 start = BPF_CORE_READ(inner, data) - head + transport;
        __u16 offset = kind == PROTO_TCP ? TCP_CHECKSUM : UDP_CHECKSUM;
        if (BPF_CORE_READ(inner, csum_start) != start || BPF_CORE_READ(inner, csum_offset) != offset)
            return 0;
    }
    if (!skb->gso_size)
        return 1;
    struct skb_shared_info *shared = (void *)(head + BPF_CORE_READ(inner, end));
    __u32 type = BPF_CORE_READ(shared, gso_type) & ~(__u32)(GSO_DODGY | GSO_TCP_ECN);
    return partial && kind == PROTO_TCP && skb->gso_size >= SEGMENT_MIN && type == (is_v6 ? GSO_TCPV6 : GSO_TCPV4);
}

static __always_inline __u32 may_send(struct __sk_buff *skb, __u32 slot, __u32 device, int segments)
{
    __be16 proto = skb->protocol;
    // A tag is not in the frame any more, and would be put into it again on the way out.
    if (skb->vlan_present || (proto != bpf_htons(ETH_IPV4) && proto != bpf_htons(ETH_IPV6)))
        return DROP_PROTOCOL;
    void *end = (void *)(long)skb->data_end;
    struct eth_hdr *eth = (void *)(long)skb->data;
    if ((void *)(eth + 1) > end)
        return DROP_MALFORMED;
    struct address source, to;
    struct ports_hdr *transport;
    __u8 kind;
    if (proto == bpf_htons(ETH_IPV4)) {
        struct ipv4_hdr *ip = (void *)(eth + 1);
        transport = (void *)(ip + 1);
        if ((void *)(transport + 1) > end || ip->version_ihl != 0x45)
            return DROP_MALFORMED;
        if (!is_transport(ip->proto))
            return DROP_PROTOCOL;
        if (ip->frag & bpf_htons(0x3fff))
            return DROP_FRAGMENT;
        // To the host itself, by whichever address.
        if ((ip->dst & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000))
            return DROP_LOCAL;
        kind = ip->proto;
        source = mapped(ip->src);
        to = mapped(ip->dst);
    } else {
        struct ipv6_hdr *ip = (void *)(eth + 1);
        transport = (void *)(ip + 1);
        if ((void *)(transport + 1) > end || (bpf_ntohl(ip->flow) >> 28) != 6)
            return DROP_MALFORMED;
        if (ip->next == PROTO_FRAGMENT)
            return DROP_FRAGMENT;
        if (!is_transport(ip->next))
            return DROP_PROTOCOL;
        kind = ip->next;
        __builtin_memcpy(&source, ip->src, sizeof(source));
        __builtin_memcpy(&to, ip->dst, sizeof(to));
    }
    __u32 what = judge(slot, kind, &source, transport->src, &to);
    int is_v6 = proto == bpf_htons(ETH_IPV6);
    __u32 header = is_v6 ? sizeof(struct ipv6_hdr) : sizeof(struct ipv4_hdr);
    if (what == OUT_FRAMES && segments && !is_sound(skb, kind, is_v6, sizeof(*eth) + header))
        return DROP_MALFORMED;
    __u32 mtu = 0;
    // Without BPF_MTU_CHK_SEGS a super-segment passes, whatever its segments have.
    if (what == OUT_FRAMES && bpf_check_mtu(skb, device, &mtu, 0, segments ? BPF_MTU_CHK_SEGS : 0))
        return DROP_LENGTH;
    return what;
}

static __always_inline int send(struct __sk_buff *skb, int segments)
{
    __u32 zero = 0, from = skb->ifindex;
    __u16 *slot = bpf_map_lookup_elem(&slot_of, &from);
    __u32 *device = bpf_map_lookup_elem(&uplink, &zero);
    if (!slot || !device)
        return TCX_DROP;
    pull(skb);
    __u32 what = may_send(skb, *slot, *device, segments);
    count(*slot, what);
    return what == OUT_FRAMES ? bpf_redirect_neigh(*device, 0, 0, 0) : TCX_DROP;
}

SEC("classifier") int share_out(struct __sk_buff *skb)
{
    return send(skb, 0);
}

SEC("classifier") int share_segments(struct __sk_buff *skb)
{
    return send(skb, 1);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
