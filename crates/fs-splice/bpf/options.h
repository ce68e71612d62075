// TCP's options, for splice.bpf.c: timestamps and SACK are those of the other connection afterwards.

#define OPTION_STAMPS bpf_htonl(0x0101080a)
#define OPTION_SACK bpf_htonl(0x01010500)
#define OPTIONS_MAX 40

static __always_inline __u32 word_at(__u8 *bytes, __u32 at)
{
    return (__u32)bytes[at & 63] << 24 | bytes[(at + 1) & 63] << 16 | bytes[(at + 2) & 63] << 8 | bytes[(at + 3) & 63];
}

static __always_inline void set_word(__u8 *bytes, __u32 at, __u32 word)
{
    bytes[at & 63] = word >> 24;
    bytes[(at + 1) & 63] = word >> 16;
    bytes[(at + 2) & 63] = word >> 8;
    bytes[(at + 3) & 63] = word;
}

// The options of one packet, while they are read.
struct options {
    __u8 bytes[64];
    __u32 length;
    __u32 at;
    __u32 edges;            // edges of SACK that follow at `at`
    __u32 stamps;
    __u32 stamp_add;
    __u32 stamp_sub;
    __u32 ack_add;
};

// One option, or one edge of SACK. 1: the end.
static long option(__u32 step, struct options *options)
{
    __u32 at = options->at & 63;
    (void)step;
    if (options->edges) {
        set_word(options->bytes, at, word_at(options->bytes, at) + options->ack_add);
        options->edges--;
        options->at = at + 4;
        return 0;
    }
    __u8 kind = options->bytes[at], size = options->bytes[(at + 1) & 63];
    if (at >= options->length || kind == 0)
        return 1;
    if (kind == 1) {
        options->at = at + 1;
        return 0;
    }
    if (size < 2 || at + size > options->length)
        return 1;
    options->at = at + size;
    if (kind == 8 && size == 10 && options->stamps) {
        set_word(options->bytes, at + 2, word_at(options->bytes, at + 2) + options->stamp_add);
        set_word(options->bytes, at + 6, word_at(options->bytes, at + 6) - options->stamp_sub);
    }
    if (kind == 5) {
        options->edges = (size - 2) / 4;
        options->at = at + 2;
    }
    return 0;
}

// Options in any order, for a packet whose options are not laid out as usual. The difference of the checksum, or -1.
static __attribute__((noinline)) long unusual_options(struct __sk_buff *skb, struct entry *entry, __u32 at, __u32 length)
{
    struct options options = {};
    __u8 before[OPTIONS_MAX];
    // Else the compiler compares a copy, and the verifier does not know the bounds.
    asm volatile("" : "+r"(length));
    length &= 63;
    if (!entry || length < 4 || length > OPTIONS_MAX || bpf_skb_load_bytes(skb, at, options.bytes, length))
        return -1;
    __builtin_memcpy(before, options.bytes, OPTIONS_MAX);
    options.length = length;
    options.stamps = entry->stamps;
    options.stamp_add = entry->stamp_add;
    options.stamp_sub = entry->stamp_sub;
    options.ack_add = entry->ack_add;
    bpf_loop(OPTIONS_MAX, option, &options, 0);
    if (bpf_skb_store_bytes(skb, at, options.bytes, length, 0))
        return -1;
    return (__u32)bpf_csum_diff((__be32 *)before, OPTIONS_MAX, (__be32 *)options.bytes, OPTIONS_MAX, 0);
}

// Options as they are laid out by all common stacks: none; timestamps; SACK; both. The difference, or -1: laid out otherwise.
static __always_inline long usual_options(struct entry *entry, struct tcp_hdr *tcp, void *end, __u32 words)
{
    __u32 *option = (void *)(tcp + 1), *sack = option;
    __u32 rest = words, blocks = 0;
    int stamps = 0;
    __u64 sum = 0;
    if (words == 0)
        return 0;
    if (words >= 3) {
        if ((void *)(option + 3) > end)
            return -1;
        stamps = option[0] == OPTION_STAMPS;
        if (stamps) {
            sack += 3;
            rest -= 3;
        }
    }
    if (rest) {
        if ((void *)(sack + 1) > end || (sack[0] & bpf_htonl(0xffffff00)) != OPTION_SACK)
            return -1;
        blocks = (rest - 1) >> 1;
        if (blocks < 1 || blocks > 4 || rest != 1 + 2 * blocks || (bpf_ntohl(sack[0]) & 0xff) != 2 + 8 * blocks)
            return -1;
    }
    // From here on all of it is understood, and changed. The bounds are for the verifier.
    if (stamps && entry->stamps) {
        asm volatile("" : "+r"(option));
        if ((void *)(option + 3) > end)
            return -1;
        ADD(&option[1], entry->stamp_add);
        ADD(&option[2], -entry->stamp_sub);
    }
#pragma unroll
    for (__u32 block = 0; block < 4; block++) {
        __u32 *edges = sack + 1 + 2 * block;
        if (block >= blocks || (void *)(edges + 2) > end)
            break;
        ADD(&edges[0], entry->ack_add);
        ADD(&edges[1], entry->ack_add);
    }
    return fold(sum);
}
