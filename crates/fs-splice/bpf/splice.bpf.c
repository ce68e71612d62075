// Spliced flows: packets of two TCP connections that the proxy joins are rewritten and sent on. docs/decisions/0040-….md says why.
//
// A flow has two entries, one for each peer, by the addresses of the peer's packets. An entry is watched first: the program notes
// by which device the peer's packets come, and its timestamp, and the kernel gets them. Later it is spliced: sequence numbers,
// acknowledgments, SACK edges, timestamps and windows are shifted into the other connection's, and bpf_redirect_neigh sends the
// packet by the kernel's own route and neighbour. The peers then retransmit, slow down and close between each other.
//
// What the proxy has sent itself, it retransmits itself, until the peer has acknowledged it (`own_end`): up to then a packet that
// only acknowledges goes to the proxy's socket.
//
// Rebuild with fs-xdp/bpf/build.sh FILE; the object is checked in, and CI compares.

#include <linux/bpf.h>
#include "../../fs-xdp/bpf/headers.h"

#define ETH_LENGTH 14
#define PACKET_HOST 0
#define TCX_NEXT -1
#define TCX_DROP 2
// Hop limit of packets that are sent on, as of those that the proxy would send itself.
#define HOPS 64

// Entries: two for each flow.
#define ENTRIES_MAX 262144

// What an ICMP error quotes of TCP at least.
struct quoted_hdr { __be16 src; __be16 dst; __be32 seq; };

struct key { struct address src; struct address dst; __be16 src_port; __be16 dst_port; };

// What a segment says, in the numbers of its own connection.
struct numbers { __u32 seq; __u32 end; __u32 ack; __u32 edge; __u32 flags; };

enum { WATCHED, SPLICED };

// Words of 32 bits only, in the order of `Entry` in entry.rs.
struct entry {
    // Written by the process.
    struct key to;          // the addresses of the packet that is sent on
    __u32 seq_add;          // added to the sequence number
    __u32 ack_add;          // added to the acknowledgment, and to SACK edges
    __u32 stamp_add;        // added to TSval
    __u32 stamp_sub;        // subtracted from TSecr
    __u32 own_end;          // end of what the proxy has sent to this peer itself; later changes: splice_settle
    __u32 device;           // the device to leave by
    __u8 mode;
    __u8 stamps;            // both connections have timestamps
    __u8 scale_in;          // window scale of this peer
    __u8 scale_out;         // window scale that the other peer expects
    __u32 id[2];
    // Written by the program; `arrived` of a spliced flow by the process. Each mark is a byte of its own: two CPUs may write at a time.
    __u32 packets;
    __u32 acked;            // the highest acknowledgment of this peer
    __u32 stamp;            // TSval of the last packet
    __u32 arrived;          // the device that packets come by
    __u32 edge;             // end of what this peer's window allows, the highest: nothing beyond it can be acknowledged
    __u32 drained_end;      // `own_end`, once this peer has acknowledged all of that
    __u32 fin_end;          // the sequence number behind the FIN
    __u8 fin;
    __u8 rst;
    __u8 rst_exact;         // a RST that the other peer accepts
    __u8 syn;               // a SYN with the addresses of this flow, dropped
    __u8 stamped;           // `stamp` is set
    __u8 encrypted;         // a packet was decrypted by IPsec
    __u8 zero[2];
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, ENTRIES_MAX);
    __type(key, struct key);
    __type(value, struct entry);
} flows SEC(".maps");

// ---- checksums: differences in one's complement ----

static __always_inline __u32 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    return (__u32)((sum & 0xffffffff) + (sum >> 32));
}

static __always_inline __u16 fold16(__u64 sum)
{
    sum = fold(sum);
    sum = (sum & 0xffff) + (sum >> 16);
    return (__u16)((sum & 0xffff) + (sum >> 16));
}

// Writes a word, and adds the difference to `sum`.
#define PUT(at, value) do { __u32 old_ = *(at), new_ = (value); sum += (__u32)~old_; sum += new_; *(at) = new_; } while (0)
#define ADD(at, more) PUT(at, bpf_htonl(bpf_ntohl(*(at)) + (more)))

// The key of packets in the other direction, as the other peer sends them.
static __always_inline struct key answer(struct key *to)
{
    struct key key = {.src = to->dst, .dst = to->src, .src_port = to->dst_port, .dst_port = to->src_port};
    return key;
}

#include "options.h"

// ---- segments ----

// Before a flow is spliced: what the process must know about it.
static __always_inline void watch(struct __sk_buff *skb, struct entry *entry, struct tcp_hdr *tcp, void *end)
{
    __u32 *option = (void *)(tcp + 1);
    struct bpf_xfrm_state state;
    entry->arrived = skb->ifindex;
    entry->packets++;
    if ((void *)(option + 2) <= end && (tcp->offset >> 4) >= 8 && option[0] == OPTION_STAMPS) {
        entry->stamp = bpf_ntohl(option[1]);
        entry->stamped = 1;
    }
    // The way back would not be encrypted.
    if (bpf_skb_get_xfrm_state(skb, 0, &state, sizeof(state), 0) == 0)
        entry->encrypted = 1;
}

// `a` is `b` or behind it.
static __always_inline int is_from(__u32 a, __u32 b)
{
    return (__s32)(a - b) >= 0;
}

static __always_inline int is_drained(struct entry *entry)
{
    return entry->drained_end == entry->own_end;
}

// The other peer has acknowledged the FIN of `entry`.
static __always_inline int fin_is_acked(struct entry *entry, struct entry *other)
{
    return entry->fin && is_from(other->acked, entry->fin_end + entry->seq_add);
}

// A SYN with the addresses of a spliced flow: if that is over, the SYN begins another connection. Else it is dropped, and the
// flow's idle time is shorter: its peer may have forgotten the connection, or somebody else has sent the SYN.
static __attribute__((noinline)) int on_syn(struct entry *entry, struct key *key)
{
    if (!entry || !key)
        return TCX_DROP;
    struct key other_key = answer(&entry->to), own = *key;
    struct entry *other = bpf_map_lookup_elem(&flows, &other_key);
    if (other && !entry->rst_exact && !other->rst_exact && !(fin_is_acked(entry, other) && fin_is_acked(other, entry))) {
        entry->syn = 1;
        return TCX_DROP;
    }
    bpf_map_delete_elem(&flows, &other_key);
    bpf_map_delete_elem(&flows, &own);
    return TCX_NEXT;
}

// What a segment that the other peer accepts says about the flow. `end`: the number behind the segment; `edge`: what its window
// allows. Numbers that are outside of the window change nothing, or anybody could end a flow.
static __attribute__((noinline)) int note(struct entry *entry, struct numbers *numbers)
{
    if (!entry || !numbers)
        return 0;
    struct key other_key = answer(&entry->to);
    struct entry *other = bpf_map_lookup_elem(&flows, &other_key);
    __u32 seq = numbers->seq + entry->seq_add, end = numbers->end + entry->seq_add, flags = numbers->flags;
    if (!other)
        return 0;
    // RFC 9293 3.10.7.4. One more: a FIN, or a byte that asks a closed window. Of an entry that is about to be spliced, the
    // numbers are not known.
    if (other->mode == SPLICED && !(is_from(end, other->acked) && is_from(other->edge + 1, seq)))
        return 0;
    if (flags & TCP_RST) {
        entry->rst = 1;
        // RFC 5961 3.2: only this one is accepted at once.
        if (other->acked == seq)
            entry->rst_exact = 1;
    }
    if (!(flags & TCP_ACK) || !is_from(entry->edge + 1, numbers->ack))
        return 0;
    if (!is_from(entry->acked, numbers->ack))
        entry->acked = numbers->ack;
    if (!is_from(entry->edge, numbers->edge))
        entry->edge = numbers->edge;
    if (is_from(numbers->ack, entry->own_end))
        entry->drained_end = entry->own_end;
    if (flags & TCP_FIN) {
        entry->fin_end = numbers->end;
        entry->fin = 1;
    }
    return 0;
}

// The window in the scale that the other peer expects. `behind`: bytes that the acknowledgment is moved up by.
static __always_inline __be16 window(struct entry *entry, __be16 before, __u32 behind)
{
    __u32 bytes = (__u32)bpf_ntohs(before) << (entry->scale_in & 15);
    bytes = bytes > behind ? bytes - behind : 0;
    __u32 after = bytes >> (entry->scale_out & 15);
    // A small window is not a closed one.
    if (!after && bytes)
        after = 1;
    return bpf_htons(after > 65535 ? 65535 : after);
}

// Rewrites a segment and sends it on. `length` is that of TCP's header and the payload.
static __always_inline int segment(struct __sk_buff *skb, struct key *key, __u32 at, __u32 length, const int is_v6)
{
    struct entry *entry = bpf_map_lookup_elem(&flows, key);
    if (!entry)
        return TCX_NEXT;
    void *end = (void *)(long)skb->data_end;
    struct tcp_hdr *tcp = (void *)(long)skb->data + at;
    if ((void *)(tcp + 1) > end)
        return TCX_NEXT;
    __u32 header = (tcp->offset >> 4) * 4, flags = tcp->flags;
    if (header < sizeof(*tcp) || header > length)
        return TCX_NEXT;
    if (entry->mode != SPLICED) {
        watch(skb, entry, tcp, end);
        return TCX_NEXT;
    }
    // Not by the way of this peer: forged, or its route has changed. The kernel has no such connection, and answers with a RST.
    if (entry->arrived != skb->ifindex)
        return TCX_NEXT;
    if (flags & TCP_SYN)
        return on_syn(entry, key);
    __u32 seq = bpf_ntohl(tcp->seq), ack = bpf_ntohl(tcp->ack), payload = length - header, behind = 0;
    int acks = flags & TCP_ACK;
    if (acks && !is_drained(entry) && !is_from(ack, entry->own_end))
        behind = entry->own_end - ack;
    __be16 new_window = window(entry, tcp->window, behind);
    struct numbers numbers = {
        .seq = seq,
        .end = seq + payload + !!(flags & TCP_FIN),
        .ack = ack,
        .edge = ack + behind + ((__u32)bpf_ntohs(new_window) << (entry->scale_out & 15)),
        .flags = flags,
    };
    // Most segments of a direction that only sends say nothing new.
    if (flags & (TCP_FIN | TCP_RST) ||
        (acks && (!is_drained(entry) || !is_from(entry->acked, ack) || !is_from(entry->edge, numbers.edge))))
        note(entry, &numbers);
    if (behind && !payload && !(flags & (TCP_FIN | TCP_RST)))
        return TCX_NEXT;
    entry->packets++;

    __u64 sum = 0;
    long options = usual_options(entry, tcp, end, (header - sizeof(*tcp)) / 4);
    if (options < 0) {
        options = unusual_options(skb, entry, at + sizeof(*tcp), header - sizeof(*tcp));
        if (options < 0)
            return TCX_DROP;
        end = (void *)(long)skb->data_end;
        tcp = (void *)(long)skb->data + at;
        if ((void *)(tcp + 1) > end)
            return TCX_DROP;
    }
    sum += (__u32)options;
    __u32 *words = (void *)tcp;
    PUT(&words[0], (__u32)entry->to.src_port | (__u32)entry->to.dst_port << 16);
    ADD(&words[1], entry->seq_add);
    if (acks) {
        ADD(&words[2], entry->ack_add + behind);
        __u32 before = words[3];
        tcp->window = new_window;
        sum += (__u32)~before;
        sum += words[3];
    }
    __u32 rest = fold(sum);

    // Addresses. Those of TCP's pseudo header are the same.
    sum = 0;
    void *data = (void *)(long)skb->data;
    if (is_v6) {
        struct ipv6_hdr *ip = data + ETH_LENGTH;
        if ((void *)(ip + 1) > end)
            return TCX_DROP;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            PUT(&ip->src[i], entry->to.src.words[i]);
            PUT(&ip->dst[i], entry->to.dst.words[i]);
        }
        ip->hops = HOPS;
    } else {
        struct ipv4_hdr *ip = data + ETH_LENGTH;
        if ((void *)(ip + 1) > end)
            return TCX_DROP;
        PUT(&ip->src, entry->to.src.words[3]);
        PUT(&ip->dst, entry->to.dst.words[3]);
        __u64 hops = (__u16)~bpf_htons(ip->ttl << 8) + (__u64)bpf_htons(HOPS << 8);
        ip->ttl = HOPS;
        ip->csum = ~fold16((__u16)~ip->csum + sum + hops);
    }
    __u32 pseudo = fold(sum), device = entry->device, csum_at = at + __builtin_offsetof(struct tcp_hdr, csum);
    // If the checksum is unfinished (CHECKSUM_PARTIAL), only the first call changes it.
    if (bpf_l4_csum_replace(skb, csum_at, 0, pseudo, BPF_F_PSEUDO_HDR) || bpf_l4_csum_replace(skb, csum_at, 0, rest, 0))
        return TCX_DROP;
    if (is_v6) {
        // The first call takes the addresses for a change of the packet's sum (CHECKSUM_COMPLETE), but TCP's checksum makes up
        // for it. An error means that the packet has no such sum.
        bpf_csum_update(skb, pseudo);
    }
    return bpf_redirect_neigh(device, 0, 0, 0);
}

// ---- ICMP errors about packets that were sent on ----

// Rewrites the quoted packet into the one that the peer has sent, and the error into one for the peer. `other` is the entry of
// the connection that the quoted packet was sent on.
static __always_inline long quoted(struct entry *other, struct quoted_hdr *tcp)
{
    __u64 sum = 0;
    __u32 *words = (void *)tcp;
    PUT(&words[0], (__u32)other->to.dst_port | (__u32)other->to.src_port << 16);
    ADD(&words[1], other->ack_add);
    return fold(sum);
}

static __always_inline int error4(struct __sk_buff *skb, __u32 at, __u32 length)
{
    void *end = (void *)(long)skb->data_end;
    struct ipv4_hdr *ip = (void *)(long)skb->data + ETH_LENGTH;
    struct icmp_hdr *icmp = (void *)(long)skb->data + at;
    struct ipv4_hdr *inner = (void *)(icmp + 1);
    struct quoted_hdr *tcp = (void *)(inner + 1);
    if ((void *)(tcp + 1) > end || (void *)(ip + 1) > end || inner->version_ihl != 0x45 ||
        length < sizeof(*icmp) + sizeof(*inner) + sizeof(*tcp) || inner->proto != PROTO_TCP || inner->frag & bpf_htons(0x1fff) ||
        (icmp->type != 3 && icmp->type != 11 && icmp->type != 12))
        return TCX_NEXT;
    struct key key = {.src = mapped(inner->dst), .dst = mapped(inner->src), .src_port = tcp->dst, .dst_port = tcp->src};
    struct entry *other = bpf_map_lookup_elem(&flows, &key);
    // Up to that moment it may be a packet of the proxy's own.
    if (!other || other->mode != SPLICED || !is_drained(other))
        return TCX_NEXT;
    __u32 diff = quoted(other, tcp);
    __u64 sum = 0;
    // The quoted header's checksum makes up for its addresses.
    PUT(&inner->src, other->to.dst.words[3]);
    PUT(&inner->dst, other->to.src.words[3]);
    inner->csum = ~fold16((__u16)~inner->csum + sum);
    sum = 0;
    PUT(&ip->src, other->to.src.words[3]);
    PUT(&ip->dst, other->to.dst.words[3]);
    __u64 hops = (__u16)~bpf_htons(ip->ttl << 8) + (__u64)bpf_htons(HOPS << 8);
    ip->ttl = HOPS;
    ip->csum = ~fold16((__u16)~ip->csum + sum + hops);
    __u32 device = other->device;
    if (bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct icmp_hdr, csum), 0, diff, 0))
        return TCX_DROP;
    return bpf_redirect_neigh(device, 0, 0, 0);
}

static __always_inline int error6(struct __sk_buff *skb, __u32 at, __u32 length)
{
    void *end = (void *)(long)skb->data_end;
    struct ipv6_hdr *ip = (void *)(long)skb->data + ETH_LENGTH;
    struct icmp_hdr *icmp = (void *)(long)skb->data + at;
    struct ipv6_hdr *inner = (void *)(icmp + 1);
    struct quoted_hdr *tcp = (void *)(inner + 1);
    if ((void *)(tcp + 1) > end || (void *)(ip + 1) > end || inner->next != PROTO_TCP ||
        length < sizeof(*icmp) + sizeof(*inner) + sizeof(*tcp) || icmp->type < 1 || icmp->type > 4)
        return TCX_NEXT;
    struct key key = {.src_port = tcp->dst, .dst_port = tcp->src};
    __builtin_memcpy(&key.src, inner->dst, sizeof(key.src));
    __builtin_memcpy(&key.dst, inner->src, sizeof(key.dst));
    struct entry *other = bpf_map_lookup_elem(&flows, &key);
    if (!other || other->mode != SPLICED || !is_drained(other))
        return TCX_NEXT;
    __u64 sum = (__u32)quoted(other, tcp);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        PUT(&inner->src[i], other->to.dst.words[i]);
        PUT(&inner->dst[i], other->to.src.words[i]);
    }
    __u32 rest = fold(sum);
    sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        PUT(&ip->src[i], other->to.src.words[i]);
        PUT(&ip->dst[i], other->to.dst.words[i]);
    }
    ip->hops = HOPS;
    __u32 pseudo = fold(sum), device = other->device, csum_at = at + __builtin_offsetof(struct icmp_hdr, csum);
    if (bpf_l4_csum_replace(skb, csum_at, 0, pseudo, BPF_F_PSEUDO_HDR) || bpf_l4_csum_replace(skb, csum_at, 0, rest, 0))
        return TCX_DROP;
    bpf_csum_update(skb, pseudo);
    return bpf_redirect_neigh(device, 0, 0, 0);
}

// ---- the device, inwards ----

// The length of what follows the IP header at `at`, or 0 if it is not as the header says. `before` counts in `said`.
static __always_inline __u32 length_after(struct __sk_buff *skb, __u32 at, __u32 said, __u32 before)
{
    __u32 have = skb->len - at;
    // A merged packet of more than 65,535 bytes (BIG TCP).
    if (!said && skb->gso_size)
        return have;
    return said > before && said - before <= have ? said - before : 0;
}

static __always_inline int packet4(struct __sk_buff *skb)
{
    void *end = (void *)(long)skb->data_end;
    struct ipv4_hdr *ip = (void *)(long)skb->data + ETH_LENGTH;
    if ((void *)(ip + 1) > end)
        return TCX_NEXT;
    __u32 header = (ip->version_ihl & 15) * 4;
    // Fragments are the kernel's, which resets the connection: see docs/PROXY.md.
    if ((ip->version_ihl >> 4) != 4 || header < sizeof(*ip) || ip->frag & bpf_htons(0x3fff))
        return TCX_NEXT;
    __u32 at = ETH_LENGTH + header, length = length_after(skb, at, bpf_ntohs(ip->len), header);
    if (!length)
        return TCX_NEXT;
    if (ip->proto == PROTO_ICMP)
        return header == sizeof(*ip) ? error4(skb, at, length) : TCX_NEXT;
    struct tcp_hdr *tcp = (void *)(long)skb->data + at;
    if (ip->proto != PROTO_TCP || (void *)(tcp + 1) > end)
        return TCX_NEXT;
    struct key key = {.src = mapped(ip->src), .dst = mapped(ip->dst), .src_port = tcp->src, .dst_port = tcp->dst};
    return segment(skb, &key, at, length, 0);
}

static __always_inline int packet6(struct __sk_buff *skb)
{
    const __u32 at = ETH_LENGTH + sizeof(struct ipv6_hdr);
    void *end = (void *)(long)skb->data_end;
    struct ipv6_hdr *ip = (void *)(long)skb->data + ETH_LENGTH;
    struct tcp_hdr *tcp = (void *)(ip + 1);
    if ((void *)(ip + 1) > end || (bpf_ntohl(ip->flow) >> 28) != 6)
        return TCX_NEXT;
    __u32 length = length_after(skb, at, bpf_ntohs(ip->len), 0);
    if (!length)
        return TCX_NEXT;
    if (ip->next == PROTO_ICMP6)
        return error6(skb, at, length);
    if (ip->next != PROTO_TCP || (void *)(tcp + 1) > end)
        return TCX_NEXT;
    struct key key = {.src_port = tcp->src, .dst_port = tcp->dst};
    __builtin_memcpy(&key.src, ip->src, sizeof(key.src));
    __builtin_memcpy(&key.dst, ip->dst, sizeof(key.dst));
    return segment(skb, &key, at, length, 1);
}

SEC("classifier") int splice_in(struct __sk_buff *skb)
{
    __be16 proto = skb->protocol;
    // A VLAN tag has been taken out of the frame by now: it is for another device (eth0.5).
    if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
        return TCX_NEXT;
    if (proto != bpf_htons(ETH_IPV4) && proto != bpf_htons(ETH_IPV6))
        return TCX_NEXT;
    pull(skb);
    return proto == bpf_htons(ETH_IPV4) ? packet4(skb) : packet6(skb);
}

// ---- the process ----

// What the process passes by BPF_PROG_TEST_RUN, behind an Ethernet header. It cannot write a part of an entry itself: an update
// replaces all of it, with what this program has written since it was read.
struct settlement { struct key key; __u32 id[2]; __u32 own_end; };

SEC("classifier") int splice_settle(struct __sk_buff *skb)
{
    struct settlement settlement;
    if (bpf_skb_load_bytes(skb, ETH_LENGTH, &settlement, sizeof(settlement)))
        return 1;
    struct entry *entry = bpf_map_lookup_elem(&flows, &settlement.key);
    if (!entry || entry->id[0] != settlement.id[0] || entry->id[1] != settlement.id[1])
        return 1;
    entry->own_end = settlement.own_end;
    if (!is_from(entry->edge, settlement.own_end))
        entry->edge = settlement.own_end;
    if (is_from(entry->acked, settlement.own_end))
        entry->drained_end = settlement.own_end;
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
