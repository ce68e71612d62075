// Headers of packets, for the programs of all crates. Fields are aligned within their headers, so no struct is packed: the compiler
// reads words at once. Include it after linux/bpf.h.

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_IPV4 0x0800
#define ETH_IPV6 0x86DD
#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_FRAGMENT 44
#define PROTO_ICMP6 58

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct eth_hdr { __u8 dst[6]; __u8 src[6]; __be16 proto; };
struct ipv4_hdr {
    __u8 version_ihl; __u8 tos; __be16 len; __be16 id; __be16 frag; __u8 ttl; __u8 proto; __be16 csum;
    __be32 src; __be32 dst;
};
struct ipv6_hdr { __be32 flow; __be16 len; __u8 next; __u8 hops; __be32 src[4]; __be32 dst[4]; };
struct fragment_hdr { __u8 next; __u8 zero; __be16 offset; __be32 id; };
struct tcp_hdr { __be16 src; __be16 dst; __be32 seq; __be32 ack; __u8 offset; __u8 flags; __be16 window; __be16 csum; __be16 urgent; };
// The first words of TCP's and UDP's.
struct ports_hdr { __be16 src; __be16 dst; };
struct icmp_hdr { __u8 type; __u8 code; __be16 csum; __be32 rest; };

// An IPv4 address is held as the IPv6 address that maps it (::ffff:a.b.c.d); "any" is ::ffff:0.0.0.0 or ::.
struct address { __be32 words[4]; };

static __always_inline struct address mapped(__be32 v4)
{
    struct address address = {.words = {0, 0, bpf_htonl(0xffff), v4}};
    return address;
}

static __always_inline int is_v4(const struct address *address)
{
    return address->words[0] == 0 && address->words[1] == 0 && address->words[2] == bpf_htonl(0xffff);
}

static __always_inline int is_transport(__u8 proto)
{
    return proto == PROTO_TCP || proto == PROTO_UDP;
}

// Headers that are read: Ethernet, IPv4 and TCP with all options (134), or an ICMPv6 error with the quoted headers (122).
#define HEADERS 136

// The headers may lie in pages of their own.
static __always_inline void pull(struct __sk_buff *skb)
{
    __u32 have = skb->data_end - skb->data, len = skb->len;
    if (have < HEADERS && have < len)
        bpf_skb_pull_data(skb, len < HEADERS ? len : HEADERS);
}
